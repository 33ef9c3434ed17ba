// Kernel images: checking that bytes are one of this twin's images, loading and naming its entries.
#pragma once

#include <cstddef>
#include <memory>
#include <string>

#include "kaas_twin/image.h"

namespace kaas_twin {

class Image {
 public:
  ~Image();
  Image(const Image&) = delete;
  Image& operator=(const Image&) = delete;

  // Null and a text when the bytes are no image of this toolkit.
  static std::unique_ptr<Image> load(const void* data, std::size_t length, std::string& error);

  const KernelEntry* find(const char* name) const;
  std::string entry_names() const;

 private:
  Image() = default;
  void* handle_ = nullptr;
  const ImageTable* table_ = nullptr;
};

}  // namespace kaas_twin
