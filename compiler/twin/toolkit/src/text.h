// printf into a string.
#pragma once

#include <cstdarg>
#include <string>

namespace kaas_twin {

std::string vformat(const char* pattern, va_list arguments);
std::string format(const char* pattern, ...) __attribute__((format(printf, 1, 2)));

}  // namespace kaas_twin
