// bfloat16_t, bfloat16x2_t and their conversions and functions.
#pragma once

#include "kaas_twin/scalar_conversions.h"
#include "kaas_twin/simt_math.h"
#include "kaas_twin/simt_warp.h"
