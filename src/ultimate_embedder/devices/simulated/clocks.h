// How far streams have come, who has waited for whom, and who has used a piece of memory.
#pragma once

#include <c10/util/SmallVector.h>

#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

namespace simulated {

constexpr int kSideStreams = 32;  // per device: like torch's pool for cards, it goes round and hands them out again

// A stream of a device as one number, so that clocks are plain arrays.
using Slot = int;
constexpr Slot slot_of(int device, int64_t stream) { return device * (kSideStreams + 1) + static_cast<int>(stream); }
constexpr int device_of(Slot slot) { return slot / (kSideStreams + 1); }
constexpr int stream_of(Slot slot) { return slot % (kSideStreams + 1); }

// How far each stream is known to have come.
class Clock {
 public:
  uint64_t at(Slot stream) const { return static_cast<size_t>(stream) < positions_.size() ? positions_[stream] : 0; }

  void raise(Slot stream, uint64_t position) {
    if (static_cast<size_t>(stream) >= positions_.size()) positions_.resize(stream + 1);
    positions_[stream] = std::max(positions_[stream], position);
  }

  void merge(const Clock& other) {
    for (size_t stream = 0; stream < other.positions_.size(); ++stream)
      if (other.positions_[stream]) raise(static_cast<Slot>(stream), other.positions_[stream]);
  }

 private:
  std::vector<uint64_t> positions_;
};

// A point of a stream: what is before it, there and on the streams that it has waited for.
struct Moment {
  Slot stream = 0;
  uint64_t position = 0;
  Clock clock;
};

// The last use of memory by each stream.
class LastUses {
 public:
  void add(Slot stream, uint64_t position) {
    for (auto& use : uses_)
      if (use.first == stream) return void(use.second = std::max(use.second, position));
    uses_.emplace_back(stream, position);
  }
  auto begin() const { return uses_.begin(); }
  auto end() const { return uses_.end(); }

 private:
  c10::SmallVector<std::pair<Slot, uint64_t>, 2> uses_;  // nearly always one or two streams
};

// Who uses a piece of a device's memory.
struct Uses {
  Slot home = 0;  // it was allocated on this stream, and goes back there
  LastUses reads, writes;
  c10::SmallVector<Slot, 2> recorded;  // it is held back for these

  bool is_recorded(Slot stream) const { return std::count(recorded.begin(), recorded.end(), stream) > 0; }
};

}  // namespace simulated
