// Cooperative groups, as far as the code generator uses them: the whole block and the lanes that are together now.
#pragma once

#include "kaas_twin/simt_warp.h"

namespace cooperative_groups {

class thread_block {
 public:
  void sync() const { asc_syncthreads(); }
  unsigned int size() const { return blockDim.x * blockDim.y * blockDim.z; }
  unsigned int num_threads() const { return size(); }
  unsigned int thread_rank() const { return threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z); }
};
inline thread_block this_thread_block() { return {}; }

/// The active lanes at the moment the group is made.
class coalesced_group {
 public:
  explicit coalesced_group(unsigned int lanes) : lanes_(lanes) {}
  void sync() const {
    const unsigned int here = kaas_twin::simt::converge();
    if ((lanes_ & ~here) != 0) kaas_twin::fail("coalesced_group.sync: lanes 0x%08x did not arrive", lanes_ & ~here);
  }
  unsigned int size() const { return static_cast<unsigned int>(__builtin_popcount(lanes_)); }
  unsigned int num_threads() const { return size(); }
  unsigned int thread_rank() const { return static_cast<unsigned int>(__builtin_popcount(lanes_ & lanemask_lt())); }

 private:
  unsigned int lanes_;
};
inline coalesced_group coalesced_threads() { return coalesced_group(kaas_twin::simt::converge()); }

}  // namespace cooperative_groups
