// The float8 types and their conversions.
#pragma once

#include "kaas_twin/scalar_conversions.h"
