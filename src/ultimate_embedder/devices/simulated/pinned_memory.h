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
#include <deque>
#include <memory>
#include <mutex>
#include <set>
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

// A block of pinned memory. A copy that is queued shares it: freed memory is used again when the copy is done.
struct PinnedBlock {
  void* memory;
  size_t bytes;
  int readers = 0, writers = 0;
  std::set<int> devices;  // whose streams were asked to copy from it or to it, without waiting

  PinnedBlock(void* memory, size_t bytes) : memory(memory), bytes(bytes) {}
  PinnedBlock(const PinnedBlock&) = delete;
  ~PinnedBlock() {
    ProtectedPages::open(memory);
    std::free(memory);
  }
};

// As torch's allocator for cards: when a block is freed an event is recorded on each stream that has copied from it or to
// it, and the next allocation asks these events. Both fail on a dead card; the first in a destructor, which ends the process.
class PinnedAllocator final : public c10::Allocator {
 public:
  using OfDevice = void (*)(int device);

  // What recording an event in a destructor does to a device, and what asking an event does.
  static void set_health(OfDevice record_in_destructor, OfDevice ask) {
    record_in_destructor_ = record_in_destructor;
    ask_ = ask;
  }

  at::DataPtr allocate(size_t bytes) override {
    for (int device; (device = next_event()) >= 0;) ask_(device);
    const size_t pages = std::bit_ceil(std::max(kPage, bytes));  // as torch's allocator for cards: a power of two
    void* memory = std::aligned_alloc(kPage, pages);
    std::lock_guard<std::mutex> lock(mutex_);
    pinned_[memory] = std::make_shared<PinnedBlock>(memory, pages);
    ++operations_;
    pinned_bytes_ += pages;
    return at::DataPtr(memory, memory, &unpin, c10::Device(at::kCPU));
  }
  c10::DeleterFnPtr raw_deleter() const override { return &unpin; }
  void copy_data(void* to, const void* from, size_t bytes) const override { std::memcpy(to, from, bytes); }

  // The block of pinned memory; none if it is ordinary memory.
  static std::shared_ptr<PinnedBlock> find(const void* memory) {
    std::lock_guard<std::mutex> lock(mutex_);
    const auto found = pinned_.find(memory);
    return found == pinned_.end() ? nullptr : found->second;
  }
  static bool is_pinned(const void* memory) { return find(memory) != nullptr; }

  // Tensors pinned so far, and bytes that are pinned now.
  static size_t operations() {
    std::lock_guard<std::mutex> lock(mutex_);
    return operations_;
  }
  static size_t pinned_bytes() {
    std::lock_guard<std::mutex> lock(mutex_);
    return pinned_bytes_;
  }

  // A stream of a device was asked to copy from or to this memory.
  static void used_by(PinnedBlock& block, int device) {
    std::lock_guard<std::mutex> lock(mutex_);
    block.devices.insert(device);
  }

  // A copy from or to all of this memory is under way, until `arrived`.
  static void expect(PinnedBlock& block, bool is_written) { count(block, is_written, +1); }
  static void arrived(PinnedBlock& block, bool is_written) { count(block, is_written, -1); }

  // For the copy itself.
  static void open(const PinnedBlock& block) { ProtectedPages::open(block.memory); }

 private:
  static void count(PinnedBlock& block, bool is_written, int change) {
    std::lock_guard<std::mutex> lock(mutex_);
    (is_written ? block.writers : block.readers) += change;
    if (block.writers) ProtectedPages::protect(block.memory, block.bytes, PROT_NONE);
    else if (block.readers) ProtectedPages::protect(block.memory, block.bytes, PROT_READ);
    else ProtectedPages::open(block.memory);
  }

  static void unpin(void* memory) {
    const std::shared_ptr<PinnedBlock> block = find(memory);
    for (int device : block->devices) record_in_destructor_(device);
    std::lock_guard<std::mutex> lock(mutex_);
    pinned_bytes_ -= block->bytes;
    events_.insert(events_.end(), block->devices.begin(), block->devices.end());
    pinned_.erase(memory);
  }

  // The device of the next event that nobody has asked yet; -1: there is none. One that raises is not asked again.
  static int next_event() {
    std::lock_guard<std::mutex> lock(mutex_);
    if (events_.empty()) return -1;
    const int device = events_.front();
    events_.pop_front();
    return device;
  }

  static inline std::mutex mutex_;
  static inline std::unordered_map<const void*, std::shared_ptr<PinnedBlock>> pinned_;
  static inline std::deque<int> events_;
  static inline size_t operations_ = 0, pinned_bytes_ = 0;
  static inline OfDevice record_in_destructor_ = [](int) {}, ask_ = [](int) {};
};

}  // namespace simulated
