#include "text.h"

#include <cstdio>

namespace kaas_twin {

std::string vformat(const char* pattern, va_list arguments) {
  va_list copy;
  va_copy(copy, arguments);
  const int length = std::vsnprintf(nullptr, 0, pattern, copy);
  va_end(copy);
  std::string text(static_cast<std::size_t>(length < 0 ? 0 : length), '\0');
  std::vsnprintf(text.data(), text.size() + 1, pattern, arguments);
  return text;
}

std::string format(const char* pattern, ...) {
  va_list arguments;
  va_start(arguments, pattern);
  std::string text = vformat(pattern, arguments);
  va_end(arguments);
  return text;
}

}  // namespace kaas_twin
