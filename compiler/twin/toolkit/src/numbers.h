// Row conversions and atomic stores to GM.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kaas_twin/instructions.h"

namespace kaas_twin {

void to_bf16(std::uint16_t* out, const float* in, std::size_t count);  // nearest even; NaN stays NaN
void to_f16(std::uint16_t* out, const float* in, std::size_t count);   // nearest even; overflow to infinity
void from_f16(float* out, const std::uint16_t* in, std::size_t count);

// out[i] = out[i] op in[i] for `bytes` bytes of elements; other host threads may do the same to the same
// memory.
void atomic_store(const char* name, void* out, const void* in, std::size_t bytes, int operation,
                  Element element);

}  // namespace kaas_twin
