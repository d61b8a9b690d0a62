// Page-locked host memory: ordinary memory that remembers that it was asked for, and can tell when the host touches it
// at the wrong time.
//
// No operator of ours sees the host read an array that a copy has not reached yet, and what it reads there, poison, may
// be repaired before anybody notices: vectors that are not finite are computed again. So tests let the pages be
// protected while a copy is under way (`watch`): reading what is being written, or writing what is being read, is then
// a fault of the processor; it is counted, and the program goes on.
#pragma once

#include <c10/core/Allocator.h>
#include <signal.h>
#include <sys/mman.h>

#include <array>
#include <atomic>
#include <bit>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <string>
#include <unordered_map>
#include <vector>

namespace simulated {

constexpr size_t kPage = 4096;  // protection knows nothing smaller

// Ranges of memory that the host must not touch. Read by a signal handler: no locks, nothing that allocates.
class ProtectedPages {
 public:
  static void watch() {
    if (std::exchange(watching_, true)) return;
    struct sigaction action = {};
    action.sa_sigaction = &on_fault;
    action.sa_flags = SA_SIGINFO;
    sigaction(SIGSEGV, &action, &before_);
  }

  static void protect(void* begin, size_t bytes, int allowed) {
    if (!watching_) return;
    Range* range = find(begin);
    if (!range) range = find(nullptr);
    if (!range) return;  // all places are taken: this one is not watched
    range->end = static_cast<char*>(begin) + bytes;
    range->begin = static_cast<char*>(begin);
    mprotect(begin, bytes, allowed);
  }

  static void open(void* begin) {
    if (Range* range = watching_ ? find(begin) : nullptr) {
      mprotect(begin, range->end - range->begin, PROT_READ | PROT_WRITE);
      range->begin = nullptr;
    }
  }

  static int take_faults() { return faults_.exchange(0); }

 private:
  struct Range {
    std::atomic<char*> begin, end;
  };

  static Range* find(const void* begin) {
    for (Range& range : ranges_)
      if (range.begin == begin) return &range;
    return nullptr;
  }

  static void on_fault(int, siginfo_t* info, void*) {
    const auto* address = static_cast<char*>(info->si_addr);
    for (Range& range : ranges_) {
      if (!range.begin || address < range.begin || address >= range.end) continue;
      ++faults_;
      mprotect(range.begin, range.end - range.begin, PROT_READ | PROT_WRITE);
      return;  // and try again: what is read there is poison
    }
    sigaction(SIGSEGV, &before_, nullptr);  // not ours: the same instruction faults again, for whoever was there before
  }

  static inline bool watching_ = false;
  static inline struct sigaction before_ = {};
  static inline std::array<Range, 1024> ranges_;
  static inline std::atomic<int> faults_{0};
};

class PinnedAllocator final : public c10::Allocator {
 public:
  at::DataPtr allocate(size_t bytes) override {
    const size_t pages = std::bit_ceil(std::max(kPage, bytes));  // as torch's allocator for cards: a power of two
    void* memory = std::aligned_alloc(kPage, pages);
    std::lock_guard<std::mutex> lock(mutex_);
    pinned_[memory] = {pages};
    ++operations_;
    pinned_bytes_ += pages;
    return at::DataPtr(memory, memory, &unpin, c10::Device(at::kCPU));
  }
  c10::DeleterFnPtr raw_deleter() const override { return &unpin; }
  void copy_data(void* to, const void* from, size_t bytes) const override { std::memcpy(to, from, bytes); }

  static bool is_pinned(const void* memory) {
    std::lock_guard<std::mutex> lock(mutex_);
    return pinned_.count(memory) > 0;
  }

  // Tensors pinned so far, and bytes that are pinned now.
  static size_t operations() {
    std::lock_guard<std::mutex> lock(mutex_);
    return operations_;
  }
  static size_t pinned_bytes() {
    std::lock_guard<std::mutex> lock(mutex_);
    return pinned_bytes_;
  }

  // A copy from or to all of this memory is under way, until `arrived`.
  static void expect(const void* memory, bool is_written) {
    std::lock_guard<std::mutex> lock(mutex_);
    Pinned& pinned = pinned_.at(memory);
    ++(is_written ? pinned.writers : pinned.readers);
    protect(const_cast<void*>(memory), pinned);
  }

  static void arrived(const void* memory, bool is_written) {
    std::lock_guard<std::mutex> lock(mutex_);
    Pinned& pinned = pinned_.at(memory);
    --(is_written ? pinned.writers : pinned.readers);
    protect(const_cast<void*>(memory), pinned);
  }

  // For the copy itself.
  static void open(const void* memory) { ProtectedPages::open(const_cast<void*>(memory)); }

 private:
  struct Pinned {
    size_t bytes;
    int readers = 0, writers = 0;
  };

  static void protect(void* memory, const Pinned& pinned) {
    if (pinned.writers) ProtectedPages::protect(memory, pinned.bytes, PROT_NONE);
    else if (pinned.readers) ProtectedPages::protect(memory, pinned.bytes, PROT_READ);
    else ProtectedPages::open(memory);
  }

  static void unpin(void* memory) {
    std::lock_guard<std::mutex> lock(mutex_);
    pinned_bytes_ -= pinned_.at(memory).bytes;
    pinned_.erase(memory);
    std::free(memory);
  }

  static inline std::mutex mutex_;
  static inline std::unordered_map<const void*, Pinned> pinned_;
  static inline size_t operations_ = 0, pinned_bytes_ = 0;
};

}  // namespace simulated
