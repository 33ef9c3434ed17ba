// What a compiled kernel image shows to the loader: a table of entries, and the packing of launch arguments.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <type_traits>
#include <utility>

namespace kaas_twin {

enum class KernelKind : std::uint32_t { kCube = 1, kVector = 2, kMixed = 3 };

struct KernelEntry {
  const char* name;
  void (*call)(const unsigned char* arguments);
  std::uint32_t argument_bytes;
  KernelKind kind;
  std::uint32_t vectors_per_block;  // AIVs of a mixed block
  std::uint32_t crosses_blocks;     // 1 when the source uses inter-block flags
  std::uint32_t reports_accesses;   // 1 when compiled for the happens-before check
};

struct ImageTable {
  const KernelEntry* entries;
  std::uint32_t count;
};

// Unpacks arguments laid out at their natural alignment, the whole padded to 8 bytes.
template <typename... Arguments>
struct ArgumentPack {
  static constexpr std::size_t aligned(std::size_t offset, std::size_t alignment) {
    return (offset + alignment - 1) / alignment * alignment;
  }
  static constexpr std::size_t offset_of(std::size_t index) {
    constexpr std::size_t sizes[] = {sizeof(Arguments)..., 1};
    constexpr std::size_t alignments[] = {alignof(Arguments)..., 1};
    std::size_t offset = 0;
    for (std::size_t i = 0;; ++i) {
      offset = aligned(offset, alignments[i]);
      if (i == index) return offset;
      offset += sizes[i];
    }
  }
  static constexpr std::uint32_t bytes =
      static_cast<std::uint32_t>(aligned(offset_of(sizeof...(Arguments)), 8));

  template <typename T>
  static T load(const unsigned char* at) {
    static_assert(std::is_trivially_copyable_v<T>);
    T value;
    std::memcpy(&value, at, sizeof(T));
    return value;
  }
  template <std::size_t... Index>
  static void call(void (*kernel)(Arguments...), const unsigned char* arguments,
                   std::index_sequence<Index...>) {
    kernel(load<Arguments>(arguments + offset_of(Index))...);
  }
};

template <typename Kernel>
struct KernelSignature;
template <typename... Arguments>
struct KernelSignature<void (*)(Arguments...)> {
  using Pack = ArgumentPack<Arguments...>;
  static constexpr std::uint32_t bytes = Pack::bytes;
  template <auto Kernel>
  static void call(const unsigned char* arguments) {
    Pack::call(Kernel, arguments, std::index_sequence_for<Arguments...>{});
  }
};

template <auto Kernel>
constexpr KernelEntry kernel_entry(const char* name, KernelKind kind, std::uint32_t vectors,
                                   bool crosses_blocks) {
  using Signature = KernelSignature<decltype(Kernel)>;
#ifdef __SANITIZE_THREAD__
  const std::uint32_t reports_accesses = 1;
#else
  const std::uint32_t reports_accesses = 0;
#endif
  return {name,    &Signature::template call<Kernel>, Signature::bytes, kind,
          vectors, crosses_blocks ? 1u : 0u,          reports_accesses};
}

}  // namespace kaas_twin
