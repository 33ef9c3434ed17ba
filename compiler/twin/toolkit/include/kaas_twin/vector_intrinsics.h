// The whole SIMD dialect of PIPE_V: types, tags and intrinsics.
#pragma once

#include "kaas_twin/vector_arithmetic.h"
#include "kaas_twin/vector_convert.h"
#include "kaas_twin/vector_instances.h"
#include "kaas_twin/vector_mask.h"
#include "kaas_twin/vector_memory.h"
#include "kaas_twin/vector_merging.h"
#include "kaas_twin/vector_rearrange.h"
#include "kaas_twin/vector_reduce.h"
#include "kaas_twin/vector_register.h"
