// The bookkeeping of a caching allocator, as GPUs have one: it decides which bytes of a device are taken,
// and holds no memory itself. Small on purpose: it imitates the rules that make `reserved` differ from
// `allocated` on a real card.
//
//   - sizes are rounded up to 512 bytes;
//   - requests up to 1 MiB are cut from segments of 2 MiB, requests under 10 MiB from segments of 20 MiB,
//     larger ones get a segment of their own, rounded up to 2 MiB;
//   - a freed block joins its free neighbours and stays reserved for the next request;
//   - a segment goes back to the device only when all of it is free and somebody asks for that.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <set>
#include <vector>

namespace simulated {

constexpr size_t KiB = 1024;
constexpr size_t MiB = 1024 * KiB;

// A stretch of one segment, taken or free. Its neighbours in the segment are `before` and `after`.
struct Block {
  size_t size = 0;
  bool taken = false;
  bool in_small_pool = false;
  Block* before = nullptr;
  Block* after = nullptr;

  bool is_whole_segment() const { return before == nullptr && after == nullptr; }
};

struct SmallestFirst {
  using is_transparent = void;
  bool operator()(const Block* a, const Block* b) const { return a->size != b->size ? a->size < b->size : a < b; }
  bool operator()(const Block* block, size_t size) const { return block->size < size; }
  bool operator()(size_t size, const Block* block) const { return size < block->size; }
};

// What the allocator knows of its device at one moment.
struct Usage {
  size_t capacity, limit, external, allocated, reserved;
  size_t peak_allocated, peak_reserved;
  size_t high_water;  // the most that reserved + external has been whenever this process took a segment
  uint64_t allocations, retries, failures;
};

class CachingAllocator {
 public:
  // The block for `bytes`, or nullptr when the device has no room for it.
  Block* allocate(size_t bytes) {
    std::lock_guard<std::mutex> lock(mutex_);
    ++usage_.allocations;
    const size_t size = std::max<size_t>(512, (bytes + 511) / 512 * 512);
    const bool small = size <= MiB;
    Block* block = failure_is_due() ? nullptr : find_or_reserve(size, small);
    if (block == nullptr) {
      ++usage_.failures;
      return nullptr;
    }
    split(block, size);
    block->taken = true;
    usage_.allocated += block->size;
    usage_.peak_allocated = std::max(usage_.peak_allocated, usage_.allocated);
    return block;
  }

  void free(Block* block) {
    std::lock_guard<std::mutex> lock(mutex_);
    usage_.allocated -= block->size;
    block->taken = false;
    auto& pool = pool_of(block);
    if (Block* next = block->after; next && !next->taken) {
      pool.erase(next);
      absorb(block, next);
    }
    if (Block* previous = block->before; previous && !previous->taken) {
      pool.erase(previous);
      absorb(previous, block);
      block = previous;
    }
    pool.insert(block);
  }

  // Give every segment that is wholly free back to the device.
  void release_cached() {
    std::lock_guard<std::mutex> lock(mutex_);
    release_free_segments();
  }

  Usage usage() const {
    std::lock_guard<std::mutex> lock(mutex_);
    return usage_;
  }

  void reset_peaks() {
    std::lock_guard<std::mutex> lock(mutex_);
    usage_.peak_allocated = usage_.allocated;
    usage_.peak_reserved = usage_.reserved;
  }

  void reset_high_water() {
    std::lock_guard<std::mutex> lock(mutex_);
    usage_.high_water = usage_.reserved + usage_.external;
  }

  // The whole size of the device; also lifts the limit.
  void set_capacity(size_t bytes) {
    std::lock_guard<std::mutex> lock(mutex_);
    usage_.capacity = usage_.limit = bytes;
  }

  // The most that this process may reserve, whatever else is free.
  void set_limit(size_t bytes) {
    std::lock_guard<std::mutex> lock(mutex_);
    usage_.limit = bytes;
  }

  // What other processes hold; they cannot take what this one has reserved.
  void set_external(size_t bytes) {
    std::lock_guard<std::mutex> lock(mutex_);
    usage_.external = std::min(bytes, usage_.capacity - std::min(usage_.capacity, usage_.reserved));
  }

  // Let the n-th allocation from now on fail (0: the next one), once; negative: none.
  void fail_after(int64_t n) {
    std::lock_guard<std::mutex> lock(mutex_);
    fail_in_ = n;
  }

 private:
  using Pool = std::set<Block*, SmallestFirst>;

  bool failure_is_due() { return fail_in_ >= 0 && fail_in_-- == 0; }

  Pool& pool_of(const Block* block) { return block->in_small_pool ? small_ : large_; }

  Block* find_or_reserve(size_t size, bool small) {
    Pool& pool = small ? small_ : large_;
    if (auto fitting = pool.lower_bound(size); fitting != pool.end()) {
      Block* block = *fitting;
      pool.erase(fitting);
      return block;
    }
    const size_t segment = small ? 2 * MiB : size < 10 * MiB ? 20 * MiB : (size + 2 * MiB - 1) / (2 * MiB) * (2 * MiB);
    if (!has_room(segment)) {
      ++usage_.retries;
      release_free_segments();
      if (!has_room(segment)) return nullptr;
    }
    usage_.reserved += segment;
    usage_.peak_reserved = std::max(usage_.peak_reserved, usage_.reserved);
    usage_.high_water = std::max(usage_.high_water, usage_.reserved + usage_.external);
    return new Block{segment, false, small};
  }

  bool has_room(size_t segment) const {
    const size_t wanted = usage_.reserved + segment;
    return wanted <= usage_.limit && wanted + usage_.external <= usage_.capacity;
  }

  // Cut what is not needed off the end of a block, unless it is too little to be of use.
  void split(Block* block, size_t size) {
    const size_t rest = block->size - size;
    if (block->in_small_pool ? rest < 512 : rest <= MiB) return;
    Block* remainder = new Block{rest, false, block->in_small_pool, block, block->after};
    if (block->after) block->after->before = remainder;
    block->after = remainder;
    block->size = size;
    pool_of(remainder).insert(remainder);
  }

  static void absorb(Block* block, Block* next) {
    block->size += next->size;
    block->after = next->after;
    if (next->after) next->after->before = block;
    delete next;
  }

  void release_free_segments() {
    for (Pool* pool : {&small_, &large_}) {
      for (auto each = pool->begin(); each != pool->end();) {
        Block* block = *each;
        if (block->is_whole_segment()) {
          usage_.reserved -= block->size;
          each = pool->erase(each);
          delete block;
        } else {
          ++each;
        }
      }
    }
  }

  mutable std::mutex mutex_;
  Pool small_, large_;  // free blocks
  int64_t fail_in_ = -1;
  Usage usage_{};
};

}  // namespace simulated
