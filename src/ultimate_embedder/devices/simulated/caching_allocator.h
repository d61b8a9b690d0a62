// The bookkeeping of a caching allocator, as GPUs have one: it decides which bytes of a device are taken,
// and holds no memory itself. Small on purpose: it imitates the rules that make `reserved` differ from
// `allocated` on a real card.
//
//   - sizes are rounded up to 512 bytes;
//   - requests up to 1 MiB are cut from segments of 2 MiB, requests under 10 MiB from segments of 20 MiB,
//     larger ones get a segment of their own, rounded up to 2 MiB;
//   - a freed block joins its free neighbours and stays reserved for the next request of the stream that it was
//     allocated on, and of no other;
//   - a segment goes back to the device only when all of it is free and somebody asks for that.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <mutex>
#include <set>
#include <tuple>
#include <vector>

namespace simulated {

constexpr size_t KiB = 1024;
constexpr size_t MiB = 1024 * KiB;

// A stretch of one segment, taken or free. Its neighbours in the segment are `before` and `after`.
struct Block {
  size_t size = 0;
  int stream = 0;
  bool taken = false;
  bool in_small_pool = false;
  Block* before = nullptr;
  Block* after = nullptr;

  bool is_whole_segment() const { return before == nullptr && after == nullptr; }
};

// What is asked for: memory of a stream.
struct Request {
  int stream;
  size_t size;
};

// By stream, the smallest first.
struct SmallestFirst {
  using is_transparent = void;
  static auto key(const Block* block) { return std::tuple(block->stream, block->size); }
  static auto key(const Request& request) { return std::tuple(request.stream, request.size); }
  bool operator()(const Block* a, const Block* b) const { return std::tuple(key(a), a) < std::tuple(key(b), b); }
  bool operator()(const Block* block, const Request& request) const { return key(block) < key(request); }
  bool operator()(const Request& request, const Block* block) const { return key(request) < key(block); }
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
  // The block for `bytes`, or nullptr when the device has no room for it. `wait_for_held` is called before that, and
  // says whether blocks that streams held back have come free.
  Block* allocate(size_t bytes, int stream, const std::function<bool()>& wait_for_held) {
    std::unique_lock<std::mutex> lock(mutex_);
    ++usage_.allocations;
    const Request request{stream, std::max<size_t>(512, (bytes + 511) / 512 * 512)};
    Block* block = nullptr;
    if (!failure_is_due()) {
      block = find_or_reserve(request);
      if (block == nullptr) {
        lock.unlock();  // they are given back by `free`
        const bool came_free = wait_for_held();
        lock.lock();
        if (came_free) block = find_or_reserve(request);
      }
    }
    if (block == nullptr) {
      ++usage_.failures;
      return nullptr;
    }
    split(block, request.size);
    block->taken = true;
    usage_.allocated += block->size;
    usage_.peak_allocated = std::max(usage_.peak_allocated, usage_.allocated);
    return block;
  }

  // The tensor of a block is gone; streams may hold the block itself back, until `free`.
  void retire(const Block* block) {
    std::lock_guard<std::mutex> lock(mutex_);
    usage_.allocated -= block->size;
  }

  void free(Block* block) {
    std::lock_guard<std::mutex> lock(mutex_);
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

  Block* find_or_reserve(const Request& request) {
    const size_t size = request.size;
    const bool small = size <= MiB;
    Pool& pool = small ? small_ : large_;
    if (auto fitting = pool.lower_bound(request); fitting != pool.end() && (*fitting)->stream == request.stream) {
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
    return new Block{segment, request.stream, false, small};
  }

  bool has_room(size_t segment) const {
    const size_t wanted = usage_.reserved + segment;
    return wanted <= usage_.limit && wanted + usage_.external <= usage_.capacity;
  }

  // Cut what is not needed off the end of a block, unless it is too little to be of use.
  void split(Block* block, size_t size) {
    const size_t rest = block->size - size;
    if (block->in_small_pool ? rest < 512 : rest <= MiB) return;
    Block* remainder = new Block{rest, block->stream, false, block->in_small_pool, block, block->after};
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
