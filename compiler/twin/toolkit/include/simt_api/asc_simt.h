// The SIMT dialect: launch, coordinates, barriers, warp functions, atomics, mathematics.
#pragma once

#include "kaas_twin/scalar_conversions.h"
#include "kaas_twin/short_vectors.h"
#include "kaas_twin/simt_atomic.h"
#include "kaas_twin/simt_launch.h"
#include "kaas_twin/simt_math.h"
#include "kaas_twin/simt_warp.h"
