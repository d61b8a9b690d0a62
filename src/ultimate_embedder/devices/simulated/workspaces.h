// What libraries of matrix products keep: scratch memory, taken from the caching allocator at the first product and not
// given back. On a card torch gives cuBLAS a workspace per handle and stream, 8.1 MiB before Hopper and 32 MiB on it;
// `torch._C._cuda_clearCublasWorkspaces()` frees them.
//
// Simplifications: one per stream, whatever the thread. On a card each thread that computes has a handle of its own, and
// gives it back when it has ended, at a time that would make runs differ. cuBLASLt is not simulated: in most versions of
// torch it shares the workspace of cuBLAS.
#pragma once

#include "clocks.h"

#include <c10/core/Allocator.h>

#include <algorithm>
#include <functional>
#include <map>
#include <mutex>

namespace simulated {

// As torch chooses it before Hopper: two of 4 MiB and eight of 16 KiB. A simplification: on a device that is small
// enough for tests this would be most of it, where on a card it is next to nothing; so never more than 1/64.
constexpr size_t workspace_bytes_for(size_t capacity) {
  return std::min<size_t>(2 * 4096 * 1024 + 8 * 16 * 1024, capacity / 64);
}

class Workspaces {
 public:
  // Before a matrix product on a stream.
  void prepare(Slot stream, const std::function<at::DataPtr()>& allocate) {
    std::lock_guard<std::mutex> lock(mutex_);
    if (!workspaces_.count(stream)) workspaces_[stream] = allocate();
  }

  void clear() {
    std::map<Slot, at::DataPtr> cleared;
    std::lock_guard<std::mutex> lock(mutex_);
    std::swap(cleared, workspaces_);
  }

 private:
  std::mutex mutex_;
  std::map<Slot, at::DataPtr> workspaces_;
};

}  // namespace simulated
