#include "image.h"

#include <dlfcn.h>
#include <elf.h>
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <cstring>
#include <string_view>

#ifndef KAAS_TWIN_DIGEST
#error "the installer names the toolkit's digest"
#endif

namespace kaas_twin {

namespace {

constexpr std::string_view kSection = ".kaas_twin";
constexpr std::string_view kMark = "kaas-twin-image " KAAS_TWIN_DIGEST;

// The content of the section that every image of a twin toolkit carries; empty when there is none.
std::string_view mark_of(const unsigned char* data, std::size_t length) {
  Elf64_Ehdr header;
  std::memcpy(&header, data, sizeof(header));
  if (header.e_shentsize != sizeof(Elf64_Shdr) || header.e_shoff > length) return {};
  if ((length - header.e_shoff) / sizeof(Elf64_Shdr) < header.e_shnum || header.e_shstrndx >= header.e_shnum)
    return {};
  auto section = [&](std::size_t index) {
    Elf64_Shdr result;
    std::memcpy(&result, data + header.e_shoff + index * sizeof(Elf64_Shdr), sizeof(result));
    return result;
  };
  auto inside = [&](const Elf64_Shdr& part) {
    return part.sh_type != SHT_NOBITS && part.sh_offset <= length && part.sh_size <= length - part.sh_offset;
  };
  const Elf64_Shdr names = section(header.e_shstrndx);
  if (!inside(names)) return {};
  const auto* text = reinterpret_cast<const char*>(data);
  for (std::size_t i = 0; i < header.e_shnum; ++i) {
    const Elf64_Shdr candidate = section(i);
    if (candidate.sh_name >= names.sh_size || !inside(candidate)) continue;
    const std::size_t room = names.sh_size - candidate.sh_name;
    const char* name = text + names.sh_offset + candidate.sh_name;
    if (strnlen(name, room) == room || kSection != name) continue;
    std::string_view mark(text + candidate.sh_offset, candidate.sh_size);
    while (!mark.empty() && mark.back() == '\0') mark.remove_suffix(1);
    return mark;
  }
  return {};
}

// A path that names the file descriptor and that no earlier load has used: the loader takes equal names for
// one image.
std::string unique_path(int descriptor) {
  static std::atomic<unsigned> loads{0};
  std::string path = "/proc/self/fd/";
  for (unsigned rest = ++loads; rest != 0; rest >>= 1) path += (rest & 1) != 0 ? ".//" : "./";
  return path + std::to_string(descriptor);
}

}  // namespace

Image::~Image() {
  if (handle_ != nullptr) dlclose(handle_);
}

std::unique_ptr<Image> Image::load(const void* data, std::size_t length, std::string& error) {
  const auto* bytes = static_cast<const unsigned char*>(data);
  if (length < sizeof(Elf64_Ehdr) || std::memcmp(bytes, ELFMAG, SELFMAG) != 0 ||
      bytes[EI_CLASS] != ELFCLASS64) {
    error = "not a kernel image: no 64-bit ELF file";
    return nullptr;
  }
  const std::string_view mark = mark_of(bytes, length);
  if (mark.empty()) {
    error = "not an image of the CPU twin: it has no .kaas_twin section, another toolchain (CANN?) built it";
    return nullptr;
  }
  if (mark != kMark) {
    error = "an image of another twin toolkit: it says '" + std::string(mark.substr(0, 80)) +
            "', this one is '" + std::string(kMark) + "'";
    return nullptr;
  }
  const int descriptor = memfd_create("kaas-twin-image", MFD_CLOEXEC);
  if (descriptor < 0) {
    error = std::string("memfd_create: ") + std::strerror(errno);
    return nullptr;
  }
  std::size_t written = 0;
  while (written < length) {
    const ssize_t step = write(descriptor, bytes + written, length - written);
    if (step <= 0) {
      error = std::string("writing the image to memory: ") + std::strerror(errno);
      close(descriptor);
      return nullptr;
    }
    written += static_cast<std::size_t>(step);
  }
  std::unique_ptr<Image> image(new Image);
  image->handle_ = dlopen(unique_path(descriptor).c_str(), RTLD_NOW | RTLD_LOCAL);
  close(descriptor);
  if (image->handle_ == nullptr) {
    const char* reason = dlerror();
    error = std::string("the image does not load: ") + (reason != nullptr ? reason : "unknown reason");
    return nullptr;
  }
  image->table_ = static_cast<const ImageTable*>(dlsym(image->handle_, "kaas_twin_image_table"));
  if (image->table_ == nullptr) {
    error = "the image has no table of kernels";
    return nullptr;
  }
  return image;
}

const KernelEntry* Image::find(const char* name) const {
  for (std::uint32_t i = 0; i < table_->count; ++i) {
    if (std::strcmp(table_->entries[i].name, name) == 0) return &table_->entries[i];
  }
  return nullptr;
}

std::string Image::entry_names() const {
  std::string names;
  for (std::uint32_t i = 0; i < table_->count; ++i)
    names += (i != 0 ? ", " : "") + std::string(table_->entries[i].name);
  return names;
}

}  // namespace kaas_twin
