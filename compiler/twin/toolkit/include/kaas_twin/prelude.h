// Everything a generated kernel includes that does not depend on the kernel: the driver precompiles this.
#pragma once

#include <kaas_twin/engine.h>
#include <kaas_twin/image.h>

#if __has_include(<tl_templates/ascend/common.h>)
#include <tl_templates/ascend/common.h>
#include <tl_templates/ascend/debug.h>
#include <tl_templates/ascend/gemm.h>
#include <tl_templates/ascend/nd2nz_copy.h>
#else
#include <c_api/asc_simd.h>
#endif
