// What libraries of matrix products keep: scratch memory, taken from the caching allocator at the first product and not
// given back. On a card torch gives cuBLAS a workspace per handle and stream, and each thread that computes has a handle
// of its own; 8.1 MiB each before Hopper, 32 MiB on it. `torch._C._cuda_clearCublasWorkspaces()` frees them.
//
// cuBLASLt is not simulated: in most versions of torch it shares the workspace of cuBLAS.
#pragma once

#include <c10/core/Allocator.h>

#include <algorithm>
#include <functional>
#include <map>
#include <mutex>
#include <set>
#include <tuple>

namespace simulated {

// As torch chooses it before Hopper: two of 4 MiB and eight of 16 KiB. A simplification: on a device that is small
// enough for tests this would be most of it, where on a card it is next to nothing; so never more than 1/64.
constexpr size_t workspace_bytes_for(size_t capacity) {
  return std::min<size_t>(2 * 4096 * 1024 + 8 * 16 * 1024, capacity / 64);
}

// The handles of this thread, one for each device. When the thread ends they are there for others.
class ThreadHandles {
 public:
  int of(int device) {
    const auto known = mine_.find(device);
    if (known != mine_.end()) return known->second;
    std::lock_guard<std::mutex> lock(mutex());
    std::set<int>& taken = taken_on(device);
    int handle = 0;
    while (taken.count(handle)) ++handle;
    taken.insert(handle);
    return mine_[device] = handle;
  }

  ~ThreadHandles() {
    std::lock_guard<std::mutex> lock(mutex());
    for (const auto& [device, handle] : mine_) taken_on(device).erase(handle);
  }

 private:
  // never destroyed: threads may end after what is static
  static std::mutex& mutex() {
    static auto& instance = *new std::mutex();
    return instance;
  }
  static std::set<int>& taken_on(int device) {
    static auto& instance = *new std::map<int, std::set<int>>();
    return instance[device];
  }

  std::map<int, int> mine_;
};

class Workspaces {
 public:
  // Before a matrix product of this thread on a stream of a device.
  void prepare(int device, int stream, const std::function<at::DataPtr()>& allocate) {
    static thread_local ThreadHandles handles;
    const Key key{device, handles.of(device), stream};
    std::lock_guard<std::mutex> lock(mutex_);
    if (!workspaces_.count(key)) workspaces_[key] = allocate();
  }

  void clear() {
    std::map<Key, at::DataPtr> cleared;
    std::lock_guard<std::mutex> lock(mutex_);
    std::swap(cleared, workspaces_);
  }

 private:
  using Key = std::tuple<int, int, int>;  // device, handle, stream
  std::mutex mutex_;
  std::map<Key, at::DataPtr> workspaces_;
};

}  // namespace simulated
