// The order of work on streams, as late as the rules allow.
//
// A card may do what a stream was asked for at any time until somebody waits for it. A program that misses a wait can
// work for months on one card and fail on the next. Here everything is done at the last moment that is allowed:
//
//   copies    between host and device are queued; the destination holds poison until a kernel needs them or somebody
//             waits. What goes to the host gets there only when the host itself has waited.
//   kernels   are run at once, since the host wants to know the shapes of their results. So that nobody relies on it,
//             each stream has a clock of what it has waited for, memory knows who used it, and a use that is not
//             ordered after another stream's use is a race: it is counted, and raised as an error.
//   memory    that was freed goes to the next who allocates on the stream where it was allocated. Other streams that
//             use it must have been recorded; then it is held back until the host knows that they are done.
//
// Simplifications: clocks are per storage, so two streams that use separate slices of one tensor are a false alarm;
// the host's clock is that of the process, so what one thread has waited for counts for all.
#pragma once

#include "clocks.h"

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

namespace simulated {

// Something that a stream will do.
struct Work {
  std::vector<const void*> memory;  // must not change until it is done; the first is the host's
  std::function<void()> run;        // when the stream comes to it
  std::function<void()> deliver;    // of a copy to the host: when the host has waited for it
};

class Streams {
 public:
  // The next kernel of a stream runs now: what is queued before it is done first.
  void begin(Slot stream) {
    if (queued_ == 0) return;  // without the lock: nearly always
    locked([&] { pass(stream, UINT64_MAX); });
  }

  // A stream reads or writes memory. Raises if that is not ordered after what other streams do with it.
  void use(Slot stream, Uses& uses, bool writes) {
    std::lock_guard<std::mutex> lock(mutex_);
    check(stream, uses.writes, "uses what another stream writes: wait_stream or wait_event is missing");
    if (writes) {
      check(stream, uses.reads, "overwrites what another stream reads: wait_stream or wait_event is missing");
      uses.writes.add(stream, advance(stream));
    } else {
      uses.reads.add(stream, advance(stream));
    }
  }

  // Queue work, to be done as late as possible.
  void later(Slot stream, Work work) {
    std::lock_guard<std::mutex> lock(mutex_);
    queue(stream, std::move(work));
  }

  // Make memory free to be written to: do now what is queued for it. New work on it will be of `stream`.
  void settle(Slot stream, const void* memory) {
    locked([&] {
      if (waiting_for(memory).empty()) return;
      pass(stream, UINT64_MAX);
      deliver([&](const Delivery& each) { return touches(each.work, memory); });
    });
  }

  // A point that the stream will come to after all that it has been asked to do.
  Moment record(Slot stream) {
    std::lock_guard<std::mutex> lock(mutex_);
    const uint64_t position = advance(stream);
    return {stream, position, clock_of(stream)};
  }

  // What comes next on `stream` comes after `moment`.
  void wait(Slot stream, const Moment& moment) {
    std::lock_guard<std::mutex> lock(mutex_);
    clock_of(stream).merge(moment.clock);
    if (stream == moment.stream || queue_of(moment.stream).empty()) return;
    queue(stream, {{}, [this, other = moment.stream, until = moment.position] { pass(other, until); }, {}});
  }

  // The host waits.
  void synchronize(const Moment& moment) {
    locked([&] { host_waits(moment); });
  }

  void synchronize(Slot stream) { synchronize(record(stream)); }

  void synchronize_device(int device) {
    locked([&] {
      for (Slot stream = slot_of(device, 0); stream <= slot_of(device, kSideStreams); ++stream) {
        const uint64_t position = advance(stream);
        host_waits({stream, position, clock_of(stream)});
      }
    });
  }

  // Whether the host knows that a stream has come this far.
  bool is_done(const Moment& moment) {
    std::lock_guard<std::mutex> lock(mutex_);
    return host_.at(moment.stream) >= moment.position;
  }

  // Whether a stream has nothing left to do. It is at work whenever one asks for the first time.
  bool is_idle(Slot stream) {
    {
      std::lock_guard<std::mutex> lock(mutex_);
      const uint64_t position = clock_of(stream).at(stream);
      if (host_.at(stream) >= position) return true;
      if (asked_.at(stream) < position) return asked_.raise(stream, position), false;
    }
    return synchronize(stream), true;
  }

  // Memory is allocated on a stream, which may be given what was freed there.
  Uses allocate(Slot home) {
    std::lock_guard<std::mutex> lock(mutex_);
    Uses uses{home};
    if (static_cast<size_t>(home) < freed_.size()) {
      const LastUses others = std::exchange(freed_[home], {});
      check(home, others, "is given memory that another stream still uses: record_stream is missing");
    }
    uses.writes.add(home, clock_of(home).at(home));  // it may still be at work on what was there before
    return uses;
  }

  void record_use(Uses& uses, Slot stream) {
    std::lock_guard<std::mutex> lock(mutex_);
    if (stream != uses.home && !uses.is_recorded(stream)) uses.recorded.push_back(stream);
  }

  // Memory is freed: `give_back` is called when the streams that were recorded are known to be done. The answer is
  // whether a stream that was not recorded has yet to copy from it or to it, and will find something else there.
  bool free(const Uses& uses, const void* memory, std::function<void()> give_back) {
    bool lost = false;
    locked([&] {
      for (const LastUses* last : {&uses.reads, &uses.writes})
        for (const auto& [stream, position] : *last)
          if (stream != uses.home && !uses.is_recorded(stream)) freed(uses.home, stream, position);
      for (Slot stream : waiting_for(memory)) lost = lost || (stream != uses.home && !uses.is_recorded(stream));
      if (uses.recorded.empty()) return give_back();
      Clock until;
      for (Slot stream : uses.recorded) until.raise(stream, clock_of(stream).at(stream));
      held_.push_back({uses.home, uses.recorded, std::move(until), std::move(give_back)});
      release_held();
    });
    return lost;
  }

  // Wait for what holds memory of a device back; whether there was any. An allocator does so before it gives up.
  bool release_held(int device) {
    bool any = false;
    locked([&] {
      std::vector<Slot> streams;
      for (const Held& held : held_)
        if (device_of(held.home) == device) streams.insert(streams.end(), held.streams.begin(), held.streams.end());
      any = !streams.empty();
      for (Slot stream : streams) host_waits({stream, clock_of(stream).at(stream), clock_of(stream)});
    });
    return any;
  }

  // What went wrong since the last call, in words.
  std::vector<std::string> take_races() {
    std::lock_guard<std::mutex> lock(mutex_);
    return std::exchange(races_, {});
  }

 private:
  struct Queued {
    uint64_t position;
    Work work;
  };
  struct Delivery {
    Slot stream;
    uint64_t position;
    Work work;
  };
  struct Held {
    Slot home;
    c10::SmallVector<Slot, 2> streams;
    Clock until;
    std::function<void()> give_back;
  };

  // Work that is done ends outside the lock: what it holds may want others, such as Python's.
  template <typename Action>
  void locked(Action action) {
    std::deque<Work> done;
    std::lock_guard<std::mutex> lock(mutex_);
    action();
    std::swap(done, done_);
  }

  Clock& clock_of(Slot stream) {
    if (static_cast<size_t>(stream) >= clocks_.size()) clocks_.resize(stream + 1);
    return clocks_[stream];
  }

  std::deque<Queued>& queue_of(Slot stream) {
    if (static_cast<size_t>(stream) >= queues_.size()) queues_.resize(stream + 1);
    return queues_[stream];
  }

  uint64_t advance(Slot stream) {
    clock_of(stream).raise(stream, ++position_);
    return position_;
  }

  void queue(Slot stream, Work work) {
    const uint64_t position = advance(stream);
    queue_of(stream).push_back({position, std::move(work)});
    ++queued_;
  }

  void check(Slot stream, const LastUses& uses, const char* problem) {
    for (const auto& [other, position] : uses) {
      if (other == stream || position <= clock_of(stream).at(other) || position <= host_.at(other)) continue;
      races_.push_back("simulated:" + std::to_string(device_of(stream)) + ": stream " +
                       std::to_string(stream_of(stream)) + " " + problem + " (stream " +
                       std::to_string(stream_of(other)) + ")");
      throw std::runtime_error(races_.back());
    }
  }

  // Let a stream do what is queued up to a position.
  void pass(Slot stream, uint64_t until) {
    while (!queue_of(stream).empty() && queue_of(stream).front().position <= until) {
      Queued next = std::move(queue_of(stream).front());
      queue_of(stream).pop_front();
      --queued_;
      // copies on both sides of the same host memory keep their order
      for (const void* memory : next.work.memory)
        deliver([&](const Delivery& each) { return touches(each.work, memory); });
      next.work.run();  // may come back here: a wait passes another stream
      if (next.work.deliver) {
        next.work.memory.resize(1);  // the device's part has been read
        deliveries_.push_back({stream, next.position, std::move(next.work)});
      } else {
        done_.push_back(std::move(next.work));
      }
    }
  }

  template <typename Due>
  void deliver(Due due) {
    for (size_t i = 0; i < deliveries_.size();) {
      if (!due(deliveries_[i])) {
        ++i;
        continue;
      }
      Work work = std::move(deliveries_[i].work);
      deliveries_.erase(deliveries_.begin() + static_cast<std::ptrdiff_t>(i));
      work.deliver();
      done_.push_back(std::move(work));
    }
  }

  void host_waits(const Moment& moment) {
    pass(moment.stream, moment.position);
    host_.merge(moment.clock);
    deliver([&](const Delivery& each) { return each.position <= host_.at(each.stream); });
    release_held();
  }

  void release_held() {
    for (size_t i = 0; i < held_.size();) {
      const auto is_done = [&](Slot stream) { return host_.at(stream) >= held_[i].until.at(stream); };
      if (!std::all_of(held_[i].streams.begin(), held_[i].streams.end(), is_done)) {
        ++i;
        continue;
      }
      held_[i].give_back();
      held_.erase(held_.begin() + static_cast<std::ptrdiff_t>(i));
    }
  }

  void freed(Slot home, Slot stream, uint64_t position) {
    if (static_cast<size_t>(home) >= freed_.size()) freed_.resize(home + 1);
    freed_[home].add(stream, position);
  }

  static bool touches(const Work& work, const void* memory) {
    return std::count(work.memory.begin(), work.memory.end(), memory) > 0;
  }

  // Streams that have work to do on this memory.
  std::vector<Slot> waiting_for(const void* memory) {
    std::vector<Slot> streams;
    if (queued_ > 0)
      for (size_t stream = 0; stream < queues_.size(); ++stream)
        for (const Queued& each : queues_[stream])
          if (touches(each.work, memory)) streams.push_back(static_cast<Slot>(stream));
    for (const Delivery& each : deliveries_)
      if (touches(each.work, memory)) streams.push_back(each.stream);
    return streams;
  }

  std::mutex mutex_;
  uint64_t position_ = 0;         // of all streams together: it only grows
  std::atomic<int> queued_{0};    // on all streams
  std::vector<std::deque<Queued>> queues_;
  std::vector<Clock> clocks_;
  std::vector<LastUses> freed_;   // by home: uses of memory that was freed there, by streams that were not recorded
  std::deque<Delivery> deliveries_;
  std::vector<Held> held_;
  std::deque<Work> done_;
  Clock host_, asked_;
  std::vector<std::string> races_;
};

}  // namespace simulated
