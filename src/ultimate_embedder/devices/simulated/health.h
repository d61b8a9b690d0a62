// How a simulated device breaks: it dies, and from then on every call that reaches it raises, as after a sticky error of
// a card; or it hangs, and whoever waits for it waits until it is released.
//
//   work        kernels and copies: they count, and raise once the device is dead. The one that kills it raises nothing: a
//               card computes later, and who asks it next is told
//   questions   events, synchronisation, free memory: they raise on a dead device; waiting blocks on one that hangs
//   freeing     never raises. But torch records an event where memory is freed that another stream has used, and where
//               pinned memory is freed that a stream has copied from or to; that fails on a dead card, in a destructor,
//               and ends the process. So it does here.
#pragma once

#include <c10/util/Exception.h>

#include <condition_variable>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <mutex>
#include <string>
#include <unordered_set>

namespace c10 {
class AcceleratorError;  // torch has it from 2.8 on
}

namespace simulated {

constexpr int kLaunchFailure = 719;

template <class Error>
concept Known = requires { sizeof(Error); };

template <class Error = c10::AcceleratorError>
[[noreturn]] void raise_broken(const std::string& message) {
  const std::string whole = message +
                            "\nkernel errors might be asynchronously reported at some other API call, so the stacktrace "
                            "below might be incorrect.\n";
  if constexpr (Known<Error>) throw Error({__func__, __FILE__, __LINE__}, kLaunchFailure, whole);
  throw c10::Error({__func__, __FILE__, __LINE__}, whole);
}

class Health {
 public:
  // Die of the kernel or copy after `operations` more; negative: live on. A death may take all devices along.
  void die_after(int64_t operations, std::string message, bool all_devices) {
    std::lock_guard<std::mutex> lock(mutex_);
    left_ = operations;
    message_ = std::move(message);
    all_devices_ = all_devices;
    if (operations < 0) dead_ = false;
  }

  // Hang when `operations` more kernels and copies have been asked for.
  void hang(int64_t operations) {
    std::lock_guard<std::mutex> lock(mutex_);
    until_hang_ = operations;
    hanging_ = operations == 0;
  }

  void release() {
    std::lock_guard<std::mutex> lock(mutex_);
    hanging_ = false;
    until_hang_ = 0;
    released_.notify_all();
  }

  // Before a kernel or a copy.
  void work() {
    check();
    std::lock_guard<std::mutex> lock(mutex_);
    if (until_hang_ > 0 && --until_hang_ == 0) hanging_ = true;
    if (left_ >= 0 && left_-- == 0) {
      dead_ = true;
      if (all_devices_) poison(message_);
    }
  }

  // Before anything else that asks the device.
  void check() const {
    const std::string message = death();
    if (!message.empty()) raise_broken(message);
  }

  // Before anything that waits for what the device is doing.
  void wait() {
    {
      std::unique_lock<std::mutex> lock(mutex_);
      released_.wait(lock, [this] { return !hanging_; });
    }
    check();
  }

  void used_by_another_stream(const void* memory) {
    std::lock_guard<std::mutex> lock(mutex_);
    used_elsewhere_.insert(memory);
  }

  void freeing(const void* memory) {
    bool recorded;
    {
      std::lock_guard<std::mutex> lock(mutex_);
      recorded = used_elsewhere_.erase(memory) > 0;
    }
    if (recorded) record_in_destructor();
  }

  // An event is recorded where nothing may be raised: on a dead device that ends the process.
  void record_in_destructor() const {
    const std::string message = death();
    if (message.empty()) return;
    std::fprintf(stderr, "terminate called after throwing an instance of 'c10::AcceleratorError'\n  what():  %s\n",
                 message.c_str());
    std::abort();
  }

  static void cure() {
    std::lock_guard<std::mutex> lock(poison_mutex);
    poisoned_by.clear();
  }

 private:
  // Why the device is dead; empty while it lives.
  std::string death() const {
    {
      std::lock_guard<std::mutex> lock(mutex_);
      if (dead_) return message_;
    }
    std::lock_guard<std::mutex> lock(poison_mutex);
    return poisoned_by;
  }

  static void poison(const std::string& message) {
    std::lock_guard<std::mutex> lock(poison_mutex);
    poisoned_by = message;
  }

  mutable std::mutex mutex_;
  std::condition_variable released_;
  int64_t left_ = -1, until_hang_ = 0;
  bool dead_ = false, all_devices_ = false, hanging_ = false;
  std::string message_;
  std::unordered_set<const void*> used_elsewhere_;

  static inline std::mutex poison_mutex;
  static inline std::string poisoned_by;
};

}  // namespace simulated
