// A simulated accelerator for torch: real tensors on real devices with a real capacity, on any machine.
//
// torch keeps the dispatch key PrivateUse1 free for devices that are not its own. We register one:
//
//   memory      host memory, charged to a device by the caching allocator of caching_allocator.h;
//               over capacity it raises torch.OutOfMemoryError, in the middle of a forward if need be
//   operators   a fallback lends the bytes to the CPU kernel as they lie and charges what comes out
//   rules       tensors of different devices do not mix, exactly as on cards
//   streams     work is done as late as the rules allow, and what is not ordered is an error: streams.h
//   host        pinned memory that can be watched while copies are under way: pinned_memory.h
//   libraries   matrix products keep workspaces: workspaces.h
//   health      a device can die or hang: health.h
//
// Not simulated: time.
#include "caching_allocator.h"
#include "health.h"
#include "pinned_memory.h"
#include "streams.h"
#include "workspaces.h"

#include <ATen/ATen.h>
#include <ATen/EmptyTensor.h>
#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <ATen/native/transformers/attention.h>
#include <ATen/native/transformers/sdp_utils_cpp.h>
#include <ATen/ops/_reshape_alias_native.h>
#include <ATen/ops/as_strided_native.h>
#include <ATen/ops/resize_native.h>
#include <ATen/ops/set_native.h>
#include <ATen/ops/view_native.h>
#include <c10/core/CPUAllocator.h>
#include <c10/core/CachingDeviceAllocator.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>
#include <torch/library.h>

#include <atomic>
#include <chrono>
#include <map>
#include <string>

namespace simulated {

using at::Tensor;
using c10::Device;
using c10::DeviceIndex;
using c10::Storage;
using c10::Stream;
using std::optional;

constexpr auto kSimulated = c10::DeviceType::PrivateUse1;
constexpr int kMostDevices = 16;

int device_count = 1;
CachingAllocator allocators[kMostDevices];
std::string allocation_errors[kMostDevices];  // what a failed allocation raises; empty: torch.OutOfMemoryError
std::atomic<int64_t> kernel_calls{0};         // launched so far, on all devices
std::atomic<int64_t> scalar_reads{0};         // the host waited for one number
std::string kernel_errors[kMostDevices];      // what every kernel raises; empty: none does
Health health[kMostDevices];
thread_local DeviceIndex current_device = 0;
thread_local c10::StreamId current_streams[kMostDevices] = {};
Streams& streams = *new Streams();  // never destroyed: tensors may outlive what is static
Workspaces& workspaces = *new Workspaces();
size_t workspace_bytes[kMostDevices] = {};
PinnedAllocator pinned_allocator;

Slot slot_of(const Stream& stream) { return slot_of(stream.device_index(), stream.id()); }
Slot current_slot(DeviceIndex device) { return slot_of(device, current_streams[device]); }

DeviceIndex checked(DeviceIndex index) {
  TORCH_CHECK(index >= 0 && index < device_count, "invalid device ordinal ", int(index), ": there are ", device_count,
              " simulated devices");
  return index;
}

DeviceIndex index_or_current(optional<Device> device) {
  return device && device->has_index() ? checked(device->index()) : current_device;
}

// ------------------------------------------------------------------------------------------------- memory

// Memory that holds nothing yet, or nothing any more: NaN in every number format, -1 as an integer.
void poison(void* memory, size_t bytes) {
  constexpr size_t most = 16 * MiB;  // enough to be noticed; more would only cost time
  std::memset(memory, 0xFF, std::min(bytes, most));
}

Block* charge(size_t bytes, DeviceIndex device) {
  const auto wait_for_held = [device] { return streams.release_held(device); };
  if (Block* block = allocators[device].allocate(bytes, current_slot(device), wait_for_held)) return block;
  TORCH_CHECK(allocation_errors[device].empty(), allocation_errors[device]);
  const Usage usage = allocators[device].usage();
  const size_t used = std::min(usage.capacity, usage.reserved + usage.external);
  const auto words = c10::CachingAllocator::format_size;
  TORCH_CHECK_WITH(OutOfMemoryError, false, "simulated:", int(device), " out of memory. Tried to allocate ", words(bytes),
                   ". The device has ", words(usage.capacity), " of which ", words(usage.capacity - used),
                   " are free; this process may reserve ", words(usage.limit), ", has ", words(usage.allocated),
                   " allocated and ", words(usage.reserved - usage.allocated), " cached; others hold ",
                   words(usage.external), ".");
}

// What a storage on a device owns: a charge, and either its own bytes or those of a CPU storage. Copies that are queued
// share the bytes.
struct Ownership {
  DeviceIndex device;
  Block* block;
  void* bytes;
  size_t size;
  Storage borrowed;  // whose bytes these are, if they are not our own
  Uses uses;
  std::shared_ptr<Ownership> self;  // until it is released

  ~Ownership() {
    if (!borrowed) std::free(bytes);
  }
};

void release(void* context) {
  const std::shared_ptr<Ownership> owned = std::move(static_cast<Ownership*>(context)->self);
  health[owned->device].freeing(owned->bytes);
  CachingAllocator& allocator = allocators[owned->device];
  if (owned->block) allocator.retire(owned->block);
  const bool lost = streams.free(owned->uses, owned->bytes, [&allocator, block = owned->block] {
    if (block) allocator.free(block);
  });
  if (lost) poison(owned->bytes, owned->size);
}

at::DataPtr owned_memory(DeviceIndex device, size_t size, Storage borrowed = {}) {
  const Uses uses = streams.allocate(current_slot(device));
  Block* block = size ? charge(size, device) : nullptr;
  void* bytes = borrowed ? const_cast<void*>(borrowed.data()) : std::aligned_alloc(64, (size + 63) / 64 * 64);
  if (!borrowed) poison(bytes, size);
  auto owned = std::make_shared<Ownership>(device, block, bytes, size, std::move(borrowed), uses);
  Ownership* context = owned.get();
  context->self = std::move(owned);
  return at::DataPtr(bytes, context, &release, Device(kSimulated, device));
}

Ownership* owner(const Storage& storage) { return static_cast<Ownership*>(storage.data_ptr().get_context()); }

// The current stream of its device reads a tensor, or writes it.
void use(const Tensor& tensor, bool writes) {
  if (!tensor.defined() || tensor.device().type() != kSimulated) return;
  if (Ownership* owned = owner(tensor.storage()))
    streams.use(current_slot(tensor.device().index()), owned->uses, writes);
}

struct TorchAllocator final : c10::DeviceAllocator {
  at::DataPtr allocate(size_t bytes) override {
    const Device device(kSimulated, current_device);
    if (bytes == 0) return at::DataPtr(nullptr, device);
    return owned_memory(current_device, bytes);
  }
  c10::DeleterFnPtr raw_deleter() const override { return nullptr; }
  void copy_data(void* to, const void* from, size_t bytes) const override { std::memcpy(to, from, bytes); }
  bool initialized() override { return true; }
  void emptyCache(c10::MempoolId_t = {0, 0}) override {
    ++empty_cache_calls;  // of all devices at once, as a card's
    for (int device = 0; device < device_count; ++device) {
      health[device].wait();  // memory goes back to a card when it has done its work
      streams.release_held(device);
      allocators[device].release_cached();
    }
  }
  void recordStream(const c10::DataPtr& memory, Stream stream) override {
    if (auto* owned = static_cast<Ownership*>(memory.get_context())) {
      health[owned->device].used_by_another_stream(owned->bytes);
      streams.record_use(owned->uses, slot_of(stream));
    }
  }
  c10::CachingDeviceAllocator::DeviceStats getDeviceStats(DeviceIndex device) override {
    const Usage usage = allocators[checked(device)].usage();
    c10::CachingDeviceAllocator::DeviceStats stats;
    set(stats.allocated_bytes, usage.allocated, usage.peak_allocated);
    set(stats.reserved_bytes, usage.reserved, usage.peak_reserved);
    stats.num_ooms = static_cast<int64_t>(usage.failures);
    stats.num_alloc_retries = static_cast<int64_t>(usage.retries);
    return stats;
  }
  void resetAccumulatedStats(DeviceIndex) override {}
  void resetPeakStats(DeviceIndex device) override { allocators[checked(device)].reset_peaks(); }
  // no `override`: older versions of torch do not have it in the base class
  std::pair<size_t, size_t> getMemoryInfo(DeviceIndex device) {
    health[checked(device)].check();
    const Usage usage = allocators[checked(device)].usage();
    return {usage.capacity - std::min(usage.capacity, usage.reserved + usage.external), usage.capacity};
  }

  std::atomic<int64_t> empty_cache_calls{0};

 private:
  static void set(c10::CachingAllocator::StatArray& stat, size_t current, size_t peak) {
    stat[0].increase(peak);
    stat[0].decrease(peak - current);
  }
};
TorchAllocator torch_allocator;
REGISTER_ALLOCATOR(c10::DeviceType::PrivateUse1, &torch_allocator);

// ------------------------------------------------------------------------------- devices, streams, events

struct Event {
  std::chrono::steady_clock::time_point recorded;
  Moment moment;
  DeviceIndex device = 0;
  bool was_asked = false;
};

struct DeviceGuard final : c10::impl::DeviceGuardImplInterface {
  c10::DeviceType type() const override { return kSimulated; }
  Device getDevice() const override { return Device(kSimulated, current_device); }
  void setDevice(Device device) const override {
    if (device.has_index()) current_device = checked(device.index());
  }
  void uncheckedSetDevice(Device device) const noexcept override {
    if (device.has_index()) current_device = device.index();
  }
  Device exchangeDevice(Device device) const override {
    const Device before = getDevice();
    setDevice(device);
    return before;
  }
  DeviceIndex deviceCount() const noexcept override { return static_cast<DeviceIndex>(device_count); }

  Stream getStream(Device device) const override {
    const DeviceIndex index = device.has_index() ? device.index() : current_device;
    return Stream(Stream::UNSAFE, Device(kSimulated, index), current_streams[index]);
  }
  Stream getDefaultStream(Device device) const override {
    return Stream(Stream::DEFAULT, device.has_index() ? device : getDevice());
  }
  Stream getNewStream(Device device, int = 0) const override {
    static std::atomic<c10::StreamId> next[kMostDevices];
    const Device where = device.has_index() ? device : getDevice();
    return Stream(Stream::UNSAFE, where, 1 + next[where.index()]++ % kSideStreams);
  }
  Stream getStreamFromGlobalPool(Device device, bool = false) const override { return getNewStream(device); }
  Stream exchangeStream(Stream stream) const override {
    const Stream before = getStream(stream.device());
    current_streams[stream.device_index()] = stream.id();
    return before;
  }
  bool queryStream(const Stream& stream) const override { return streams.is_idle(slot_of(stream)); }
  void synchronizeStream(const Stream& stream) const override {
    health[stream.device_index()].wait();
    streams.synchronize(slot_of(stream));
  }
  void synchronizeDevice(const DeviceIndex device) const override {
    health[device].wait();
    streams.synchronize_device(device);
  }

  void record(void** event, const Stream& stream, const DeviceIndex, const c10::EventFlag) const override {
    health[stream.device_index()].check();
    if (*event == nullptr) *event = new Event();
    *static_cast<Event*>(*event) = {std::chrono::steady_clock::now(), streams.record(slot_of(stream)),
                                    stream.device_index()};
  }
  void destroyEvent(void* event, const DeviceIndex) const noexcept override { delete static_cast<Event*>(event); }
  void block(void* event, const Stream& stream) const override {
    health[stream.device_index()].check();
    streams.wait(slot_of(stream), static_cast<Event*>(event)->moment);
  }
  // Not done yet, for whoever asks only once; who keeps asking must find it done at some time.
  bool queryEvent(void* event) const override {
    auto* asked = static_cast<Event*>(event);
    if (std::exchange(asked->was_asked, true)) streams.synchronize(asked->moment);
    return streams.is_done(asked->moment);
  }
  void synchronizeEvent(void* event) const override {
    health[static_cast<Event*>(event)->device].wait();
    streams.synchronize(static_cast<Event*>(event)->moment);
  }
  double elapsedTime(void* first, void* second, const DeviceIndex) const override {
    health[static_cast<Event*>(first)->device].check();
    const bool done = streams.is_done(static_cast<Event*>(first)->moment) &&
                      streams.is_done(static_cast<Event*>(second)->moment);
    TORCH_CHECK(done, "device not ready: wait for both events before asking for the time between them");
    const auto elapsed = static_cast<Event*>(second)->recorded - static_cast<Event*>(first)->recorded;
    return std::chrono::duration<double, std::milli>(elapsed).count();
  }
};
C10_REGISTER_GUARD_IMPL(PrivateUse1, DeviceGuard);

struct Hooks final : at::PrivateUse1HooksInterface {
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return true; }
  bool hasPrimaryContext(DeviceIndex) const override { return true; }
  DeviceIndex deviceCount() const override { return static_cast<DeviceIndex>(device_count); }
  DeviceIndex getCurrentDevice() const override { return current_device; }
  void setCurrentDevice(DeviceIndex device) const override { current_device = checked(device); }
  DeviceIndex exchangeDevice(DeviceIndex device) const override {
    return std::exchange(current_device, checked(device));
  }
  DeviceIndex maybeExchangeDevice(DeviceIndex device) const override {
    return device < 0 ? current_device : exchangeDevice(device);
  }
  bool isPinnedPtr(const void* memory) const override { return PinnedAllocator::is_pinned(memory); }
  at::Allocator* getPinnedMemoryAllocator() const override { return &pinned_allocator; }
  const at::Generator& getDefaultGenerator(DeviceIndex) const override {
    return at::globalContext().defaultGenerator(at::kCPU);
  }
  void resizePrivateUse1Bytes(const Storage& storage, size_t bytes) const override {
    c10::DeviceGuard guard(storage.device());
    const Slot stream = current_slot(storage.device().index());
    if (Ownership* owned = owner(storage)) streams.use(stream, owned->uses, /*writes=*/false);
    streams.begin(stream);
    auto memory = torch_allocator.allocate(bytes);
    if (storage.data()) std::memcpy(memory.get(), storage.data(), std::min(bytes, storage.nbytes()));
    storage.unsafeGetStorageImpl()->set_data_ptr_noswap(std::move(memory));
    storage.unsafeGetStorageImpl()->set_nbytes(bytes);
  }
};

// ---------------------------------------------------------------------------------- between host and device

Tensor tensor_over(Storage storage, c10::DispatchKey key, const Tensor& shape) {
  auto tensor = at::detail::make_tensor<c10::TensorImpl>(std::move(storage), c10::DispatchKeySet(key), shape.dtype());
  tensor.unsafeGetTensorImpl()->set_sizes_and_strides(shape.sizes(), shape.strides(), shape.storage_offset());
  return tensor;
}

// The bytes of a tensor, whoever they belong to, as the CPU kernels want to see them.
Tensor over_bytes_of(const Tensor& tensor) {
  auto* bytes = const_cast<void*>(tensor.storage().data());
  Storage storage(Storage::use_byte_size_t{}, tensor.storage().nbytes(),
                  at::DataPtr(bytes, nullptr, &c10::detail::deleteNothing, Device(at::kCPU)), c10::GetCPUAllocator(),
                  /*resizable=*/true);
  return tensor_over(std::move(storage), c10::DispatchKey::CPU, tensor);
}

Tensor lend_to_cpu(const Tensor& tensor) {
  return tensor.defined() && tensor.device().type() == kSimulated ? over_bytes_of(tensor) : tensor;
}

// A fresh CPU tensor becomes one of the device: the bytes stay where they are, the device is charged for them.
Tensor adopt(const Tensor& tensor, DeviceIndex device) {
  const size_t bytes = tensor.storage().nbytes();
  Storage storage(Storage::use_byte_size_t{}, bytes, owned_memory(device, bytes, tensor.storage()), &torch_allocator,
                  /*resizable=*/true);
  streams.use(current_slot(device), owner(storage)->uses, /*writes=*/true);
  return tensor_over(std::move(storage), c10::DispatchKey::PrivateUse1, tensor);
}

std::atomic<int64_t> host_to_device{0}, device_to_host{0}, within_device{0}, between_devices{0};

void copy_bytes(const Tensor& from, const Tensor& to) {
  ++kernel_calls;
  at::AutoDispatchBelowADInplaceOrView guard;
  lend_to_cpu(to).copy_(lend_to_cpu(from));
}

// Host memory of a copy that is queued: pinned, or a buffer of the driver. Other tensors over it may come and go.
struct HostSide {
  Tensor tensor;
  std::shared_ptr<PinnedBlock> block;
  bool watched;  // whether a copy begins where a pinned allocation does: all of its pages are watched then

  HostSide(const Tensor& host, DeviceIndex device) : block(PinnedAllocator::find(host.storage().data())) {
    watched = block && host.storage_offset() == 0;
    tensor = block ? over_bytes_of(host) : tensor_over(Storage(host.storage()), c10::DispatchKey::CPU, host);
    if (block) PinnedAllocator::used_by(*block, device);
  }
};

void poison_until_copied(Slot stream, const Tensor& to) {
  streams.settle(stream, to.storage().data());
  if (to.is_non_overlapping_and_dense()) poison(lend_to_cpu(to).mutable_data_ptr(), to.numel() * to.element_size());
}

void send_later(Slot stream, const Tensor& from, const Tensor& to) {
  poison_until_copied(stream, to);
  const HostSide host(from, to.device().index());
  if (host.watched) PinnedAllocator::expect(*host.block, /*is_written=*/false);
  const auto run = [host, to = lend_to_cpu(to), memory = owner(to.storage())->self] {
    copy_bytes(host.tensor, to);
    if (host.watched) PinnedAllocator::arrived(*host.block, /*is_written=*/false);
  };
  streams.later(stream, {{from.storage().data(), to.storage().data()}, run, {}});
}

void fetch_later(Slot stream, const Tensor& from, const Tensor& to) {
  poison_until_copied(stream, to);
  const HostSide host(to, from.device().index());
  if (host.watched) PinnedAllocator::expect(*host.block, /*is_written=*/true);
  const auto on_its_way = std::make_shared<Tensor>();
  const auto run = [on_its_way, from = lend_to_cpu(from), memory = owner(from.storage())->self] {
    at::AutoDispatchBelowADInplaceOrView guard;
    *on_its_way = from.clone();  // what comes next on the stream may overwrite it
  };
  const auto deliver = [on_its_way, host] {
    if (host.watched) PinnedAllocator::open(*host.block);
    copy_bytes(*on_its_way, host.tensor);
    if (host.watched) PinnedAllocator::arrived(*host.block, /*is_written=*/true);
  };
  streams.later(stream, {{to.storage().data(), from.storage().data()}, run, deliver});
}

// With the host. Memory that is not pinned is sent by way of a buffer of the driver, which waits for the stream before it
// is filled, and fetched before the call returns.
void copy_with_host(const Tensor& from, const Tensor& to, bool non_blocking) {
  const bool sends = from.is_cpu();
  const Slot stream = current_slot((sends ? to : from).device().index());
  const bool pinned = PinnedAllocator::is_pinned((sends ? from : to).storage().data());
  const bool buffered = non_blocking && sends && !pinned;
  if (buffered) streams.synchronize(stream);
  use(from, /*writes=*/false);
  use(to, /*writes=*/true);
  if (!non_blocking || (!sends && !pinned)) {
    streams.synchronize(stream);
    copy_bytes(from, to);
  } else if (sends) {
    send_later(stream, buffered ? from.clone() : from, to);
  } else {
    fetch_later(stream, from, to);
  }
}

// On the stream of the device that it comes from; that of the other device waits for it.
void copy_between_devices(const Tensor& from, const Tensor& to) {
  const Slot here = current_slot(from.device().index()), there = current_slot(to.device().index());
  streams.wait(here, streams.record(there));
  streams.use(here, owner(from.storage())->uses, /*writes=*/false);
  streams.use(here, owner(to.storage())->uses, /*writes=*/true);
  streams.begin(here);
  copy_bytes(from, to);
  streams.wait(there, streams.record(here));
}

Tensor copy_from(const Tensor& from, const Tensor& to, bool non_blocking) {
  for (const Tensor& each : {from, to})
    if (!each.is_cpu()) health[each.device().index()].work();
  if (!non_blocking && (from.is_cpu() || to.is_cpu())) health[(from.is_cpu() ? to : from).device().index()].wait();
  const auto bytes = static_cast<int64_t>(from.numel() * from.element_size());
  if (bytes == 0) return to;
  if (from.is_cpu() || to.is_cpu()) {
    (from.is_cpu() ? host_to_device : device_to_host) += bytes;
    copy_with_host(from, to, non_blocking);
  } else if (from.device() != to.device()) {
    between_devices += bytes;
    copy_between_devices(from, to);
  } else {
    within_device += bytes;
    use(from, /*writes=*/false);
    use(to, /*writes=*/true);
    streams.begin(current_slot(to.device().index()));
    copy_bytes(from, to);
  }
  return to;
}

Tensor copy_from_and_resize(const Tensor& from, const Tensor& to) {
  to.resize_(from.sizes());
  return copy_from(from, to, false);
}

at::Scalar local_scalar(const Tensor& tensor) {
  ++scalar_reads;
  health[tensor.device().index()].wait();
  use(tensor, /*writes=*/false);
  streams.synchronize(current_slot(tensor.device().index()));
  return at::_local_scalar_dense(lend_to_cpu(tensor));
}

// -------------------------------------------------------------------------------------------- the operators

bool is_half(const Tensor& tensor) { return tensor.scalar_type() == at::kHalf || tensor.scalar_type() == at::kBFloat16; }

// Runs any operator on the CPU kernel: arguments are lent, results adopted, the rules of devices kept.
class FallbackCall {
 public:
  FallbackCall(const c10::OperatorHandle& op, torch::jit::Stack* stack, bool uses_workspace)
      : op_(op), stack_(stack), uses_workspace_(uses_workspace) {}

  void run() {
    const size_t arguments = op_.schema().arguments().size();
    for (size_t i = 0; i < arguments; ++i) {
      alias_ = op_.schema().arguments()[i].alias_info();
      lend((*stack_)[stack_->size() - arguments + i]);
    }
    check_host_arguments();
    if (!device_) device_ = Device(kSimulated, index_or_current(to_simulated() ? target_ : optional<Device>()));
    health[device_->index()].work();
    TORCH_CHECK(kernel_errors[device_->index()].empty(), kernel_errors[device_->index()]);
    ++kernel_calls;
    if (uses_workspace_) prepare_workspace();
    streams.begin(current_slot(device_->index()));
    {
      at::AutoDispatchBelowADInplaceOrView guard;
      const optional<at::ScalarType> narrow = uses_workspace_ ? widen(arguments) : std::nullopt;
      op_.redispatchBoxed(c10::DispatchKeySet(c10::DispatchKey::CPU), stack_);
      if (narrow) stack_->back() = stack_->back().toTensor().to(*narrow);
    }
    for (auto& [original, lent] : lent_) follow_resize(original, lent);
    const size_t results = op_.schema().returns().size();
    for (size_t i = stack_->size() - results; i < stack_->size(); ++i) give_back((*stack_)[i]);
  }

 private:
  void prepare_workspace() const {
    const DeviceIndex device = device_->index();
    if (const size_t bytes = workspace_bytes[device])
      workspaces.prepare(current_slot(device), [=] { return owned_memory(device, bytes); });
  }

  // A card adds the products of halves up in fp32. A CPU without instructions for halves takes twenty times as long for them
  // as for fp32. Gives the dtype of the result; nothing where the kernel writes into an argument, or has no halves.
  optional<at::ScalarType> widen(size_t arguments) {
    if (op_.schema().returns()[0].alias_info()) return std::nullopt;
    optional<at::ScalarType> narrow;
    for (size_t i = stack_->size() - arguments; i < stack_->size(); ++i) {
      c10::IValue& value = (*stack_)[i];
      if (!value.isTensor() || !is_half(value.toTensor())) continue;
      narrow = value.toTensor().scalar_type();
      value = value.toTensor().to(at::kFloat);
    }
    return narrow;
  }

  bool to_simulated() const { return target_ && target_->type() == kSimulated; }
  bool to_host() const { return target_ && target_->type() == at::kCPU; }

  void lend(c10::IValue& value) {
    if (value.isTensor()) {
      value = lend(value.toTensor());
    } else if (value.isTensorList()) {
      std::vector<Tensor> lent;
      for (const Tensor& tensor : value.toTensorVector()) lent.push_back(lend(tensor));
      value = c10::IValue(lent);
    } else if (value.isOptionalTensorList()) {
      c10::List<optional<Tensor>> lent;
      for (const optional<Tensor>& tensor : value.toOptionalTensorVector())
        lent.push_back(tensor ? optional<Tensor>(lend(*tensor)) : std::nullopt);
      value = c10::IValue(lent);
    } else if (value.isDevice()) {
      target_ = value.toDevice();
      value = c10::IValue(Device(at::kCPU));
    }
  }

  Tensor lend(const Tensor& tensor) {
    if (!tensor.defined()) return tensor;
    if (tensor.device().type() != kSimulated) {
      if (tensor.dim() > 0 && tensor.is_cpu()) has_host_argument_ = true;  // scalars may live on the host
      return tensor;
    }
    if (!device_) device_ = tensor.device();
    TORCH_CHECK(*device_ == tensor.device(), "Expected all tensors to be on the same device, but found at least two devices, ",
                *device_, " and ", tensor.device(), "! (in ", op_.operator_name(), ")");
    if (!alias_ || alias_->isWrite()) use(tensor, /*writes=*/alias_ != nullptr);  // else a view, which reads nothing
    lent_.emplace_back(tensor, lend_to_cpu(tensor));
    return lent_.back().second;
  }

  void check_host_arguments() const {
    if (!has_host_argument_ || !device_) return;
    // indices may come from the host, as on cuda
    const std::string& name = op_.schema().name();
    const bool may_mix = name == "aten::index" || name == "aten::index_put" || name == "aten::index_put_" ||
                         name == "aten::_index_put_impl_";
    TORCH_CHECK(may_mix, "Expected all tensors to be on the same device, but found at least two devices, ", *device_,
                " and cpu! (in ", name, ")");
  }

  // An out= argument that the kernel has grown must grow on the device too.
  static void follow_resize(const Tensor& original, const Tensor& lent) {
    if (lent.storage().data() != original.storage().data()) {
      original.resize_(lent.sizes());
      lend_to_cpu(original).copy_(lent);
    } else if (!original.sizes().equals(lent.sizes())) {
      original.unsafeGetTensorImpl()->set_sizes_and_strides(lent.sizes(), lent.strides(), lent.storage_offset());
    }
  }

  void give_back(c10::IValue& value) {
    if (value.isTensor()) {
      value = give_back(value.toTensor());
    } else if (value.isTensorList()) {
      std::vector<Tensor> given;
      for (const Tensor& tensor : value.toTensorVector()) given.push_back(give_back(tensor));
      value = c10::IValue(given);
    }
  }

  Tensor give_back(const Tensor& result) const {
    if (!result.defined() || to_host()) return result;
    for (const auto& [original, lent] : lent_)
      if (lent.is_same(result)) return original;
    for (const auto& [original, lent] : lent_)
      if (result.storage().data() && lent.storage().data() == result.storage().data())  // a view of an argument
        return tensor_over(Storage(original.storage()), c10::DispatchKey::PrivateUse1, result);
    return adopt(result, device_->index());
  }

  const c10::OperatorHandle& op_;
  torch::jit::Stack* stack_;
  const bool uses_workspace_;
  optional<Device> device_, target_;
  bool has_host_argument_ = false;
  const c10::AliasInfo* alias_ = nullptr;  // of the argument at hand
  std::vector<std::pair<Tensor, Tensor>> lent_;  // the device's tensor, and its face for the CPU
};

void run_on_cpu(const c10::OperatorHandle& op, torch::jit::Stack* stack) { FallbackCall(op, stack, false).run(); }
void run_matrix_product(const c10::OperatorHandle& op, torch::jit::Stack* stack) { FallbackCall(op, stack, true).run(); }

Tensor empty(at::IntArrayRef sizes, optional<at::ScalarType> dtype, optional<at::Layout>, optional<Device> device,
             optional<bool>, optional<at::MemoryFormat> format) {
  c10::DeviceGuard guard(Device(kSimulated, index_or_current(device)));
  return Tensor(at::detail::empty_generic(sizes, &torch_allocator, c10::DispatchKeySet(c10::DispatchKey::PrivateUse1),
                                          c10::dtype_or_default(dtype), format));
}

Tensor empty_strided(at::IntArrayRef sizes, at::IntArrayRef strides, optional<at::ScalarType> dtype, optional<at::Layout>,
                     optional<Device> device, optional<bool>) {
  c10::DeviceGuard guard(Device(kSimulated, index_or_current(device)));
  return Tensor(at::detail::empty_strided_generic(sizes, strides, &torch_allocator,
                                                  c10::DispatchKeySet(c10::DispatchKey::PrivateUse1),
                                                  c10::dtype_or_default(dtype)));
}

Tensor as_strided(const Tensor& tensor, at::IntArrayRef sizes, at::IntArrayRef strides, optional<int64_t> offset) {
  return at::native::as_strided_tensorimpl(tensor, sizes, strides, offset);
}

const Tensor& resize(const Tensor& tensor, at::IntArrayRef sizes, optional<at::MemoryFormat> format) {
  c10::DeviceGuard guard(tensor.device());
  return at::native::resize_(tensor, sizes, format);
}

Tensor& set_storage(Tensor& tensor, Storage storage, int64_t offset, at::IntArrayRef sizes, at::IntArrayRef strides) {
  return at::native::set_storage_cpu_(tensor, std::move(storage), offset, sizes, strides);
}

// Which attention kernel a card of this capability takes, as torch's CUDA dispatcher (up to 2.13) decides: flash, else the
// memory-efficient one, else plain math. The first two are fused: scores are never in memory. cuDNN is switched off.
struct Capability {
  int major, minor;
};
Capability capabilities[kMostDevices];


bool flash_takes(Capability card, const Tensor& query, const Tensor& key, const Tensor& value, bool has_mask, bool causal,
                 bool enable_gqa) {
  const auto dim = query.size(3), heads = query.size(1);
  const bool square = !causal || query.size(2) == key.size(2);
  const bool same_dim = dim == key.size(3) && dim == value.size(3) && dim <= 256;
  const bool same_heads = key.size(1) == value.size(1) && (enable_gqa ? heads % key.size(1) == 0 : heads == key.size(1));
  return card.major >= 8 && is_half(query) && !has_mask && square && same_dim && same_heads;
}

bool efficient_takes(Capability card, const Tensor& query, const Tensor& key, const Tensor& value, const optional<Tensor>& mask) {
  const bool half = is_half(query);
  const bool tensor_cores = card.major >= 8 || (card.major == 7 && half);
  const int64_t alignment = tensor_cores ? (half ? 8 : 4) : 1;
  const bool aligned = query.size(3) == key.size(3) && query.size(3) % alignment == 0 && value.size(3) % alignment == 0;
  const bool same_heads = query.size(1) == key.size(1) && query.size(1) == value.size(1);
  const bool known_dtype = query.scalar_type() == at::kHalf || query.scalar_type() == at::kFloat ||
                           (query.scalar_type() == at::kBFloat16 && card.major >= 8);
  return card.major >= 5 && aligned && same_heads && known_dtype && (!mask || mask->stride(-1) == 1);
}

int64_t choose_attention(const Tensor& query, const Tensor& key, const Tensor& value, const optional<Tensor>& mask, double,
                         bool causal, optional<double>, bool enable_gqa) {
  const Capability card = capabilities[query.device().index()];
  const bool plain = query.dim() == 4 && key.dim() == 4 && value.dim() == 4 && query.size(0) == key.size(0) &&
                     query.size(0) == value.size(0) && query.size(2) > 0 && key.size(2) > 0 && query.stride(3) == 1 &&
                     key.stride(3) == 1 && value.stride(3) == 1;
  const bool fused = plain && (flash_takes(card, query, key, value, mask.has_value(), causal, enable_gqa) ||
                               efficient_takes(card, query, key, value, mask));
  return static_cast<int64_t>(fused ? sdp::SDPBackend::overrideable : sdp::SDPBackend::math);
}

// The memory-efficient kernel wants the rows of a mask at multiples of eight elements, and copies one that is not so.
Tensor aligned_mask(const Tensor& mask) {
  constexpr int64_t kAlignment = 8;
  bool aligned = true;
  for (int64_t i = 0; i + 1 < mask.dim(); ++i) aligned = aligned && mask.stride(i) % kAlignment == 0;
  return aligned ? mask : at::constant_pad_nd(mask, {0, kAlignment - mask.size(-1) % kAlignment});
}

std::tuple<Tensor, Tensor, Tensor, Tensor, c10::SymInt, c10::SymInt, Tensor, Tensor, Tensor> attention(
    const Tensor& query, const Tensor& key, const Tensor& value, const optional<Tensor>& mask, double dropout, bool causal,
    bool /*return_debug_mask*/, optional<double> scale) {
  TORCH_CHECK(query.device() == key.device() && query.device() == value.device() &&
                  (!mask || mask->device() == query.device()),
              "Expected all tensors to be on the same device (in scaled_dot_product_attention)");
  health[query.device().index()].work();
  ++kernel_calls;
  for (const Tensor& tensor : {query, key, value, mask.value_or(Tensor())}) use(tensor, /*writes=*/false);
  streams.begin(current_slot(query.device().index()));
  at::AutoDispatchBelowADInplaceOrView guard;
  const Tensor held = mask ? aligned_mask(*mask) : Tensor();  // flash, which copies none, takes no mask either
  // halves are widened, as in matrix products
  const auto wide = [](const Tensor& tensor) {
    const Tensor lent = lend_to_cpu(tensor);
    return is_half(lent) ? lent.to(at::kFloat) : lent;
  };
  auto result = at::scaled_dot_product_attention(wide(query), wide(key), wide(value),
                                                 mask ? optional<Tensor>(wide(*mask)) : std::nullopt, dropout, causal, scale,
                                                 /*enable_gqa=*/query.size(1) != key.size(1))
                    .to(query.scalar_type());
  const auto nothing = at::empty({0}, query.options());
  return {adopt(result, query.device().index()), nothing, nothing, nothing, query.size(2), key.size(2), nothing, nothing,
          nothing};
}

void record_stream(Tensor& tensor, Stream stream) {
  torch_allocator.recordStream(tensor.storage().data_ptr(), stream);
}

}  // namespace simulated

namespace at::native {
REGISTER_PRIVATEUSE1_DISPATCH(_fused_sdp_choice_stub, &simulated::choose_attention);
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("empty.memory_format", TORCH_FN(simulated::empty));
  m.impl("empty_strided", TORCH_FN(simulated::empty_strided));
  m.impl("_copy_from", TORCH_FN(simulated::copy_from));
  m.impl("_copy_from_and_resize", TORCH_FN(simulated::copy_from_and_resize));
  m.impl("_local_scalar_dense", TORCH_FN(simulated::local_scalar));
  m.impl("as_strided", TORCH_FN(simulated::as_strided));
  m.impl("view", TORCH_FN((at::Tensor(*)(const at::Tensor&, at::IntArrayRef))at::native::view));
  m.impl("_reshape_alias",
         TORCH_FN((at::Tensor(*)(const at::Tensor&, at::IntArrayRef, at::IntArrayRef))at::native::_reshape_alias));
  m.impl("resize_", TORCH_FN(simulated::resize));
  m.impl("set_.source_Storage_storage_offset", TORCH_FN(simulated::set_storage));
  m.impl("set_.source_Storage", TORCH_FN((at::Tensor & (*)(at::Tensor&, at::Storage)) at::native::set_));
  m.impl("set_.source_Tensor", TORCH_FN(at::native::set_tensor_));
  m.impl("set_", TORCH_FN(at::native::set_cpu_));
  m.impl("record_stream", TORCH_FN(simulated::record_stream));
  m.impl("_fused_sdp_choice", TORCH_FN(simulated::choose_attention));
  m.impl("_scaled_dot_product_fused_attention_overrideable", TORCH_FN(simulated::attention));
  for (const char* product : {"mm", "mm.out", "bmm", "bmm.out", "addmm", "addmm.out", "addmm_", "baddbmm", "baddbmm.out",
                              "baddbmm_", "addmv", "addmv.out", "addmv_", "dot"})
    m.impl(product, torch::CppFunction::makeFromBoxedFunction<&simulated::run_matrix_product>());
  // torch would take it apart for a device without a kernel of its own, and then round its epsilon to half precision
  m.impl("native_layer_norm", torch::CppFunction::makeFromBoxedFunction<&simulated::run_on_cpu>());
}
TORCH_LIBRARY_IMPL(_, AutocastPrivateUse1, m) { m.fallback(torch::CppFunction::makeFallthrough()); }
TORCH_LIBRARY_IMPL(_, PrivateUse1, m) {
  m.fallback(torch::CppFunction::makeFromBoxedFunction<&simulated::run_on_cpu>());
}

// ------------------------------------------------------------------------------------------ what Python sees

PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) {
  using namespace simulated;
  m.def("register_hooks", [] {
    PinnedAllocator::set_health([](int device) { health[device].record_in_destructor(); },
                                [](int device) { health[device].check(); });
    if (!at::isPrivateUse1HooksRegistered()) at::RegisterPrivateUse1HooksInterface(new Hooks());
  });
  m.def("most_devices", [] { return kMostDevices; });
  m.def("device_count", [] { return device_count; });
  m.def("set_device_count", [](int count) { device_count = count; });
  m.def("set_capacity", [](DeviceIndex device, size_t bytes) {
    allocators[checked(device)].set_capacity(bytes);
    workspace_bytes[device] = workspace_bytes_for(bytes);
  });
  m.def("set_workspace", [](DeviceIndex device, size_t bytes) { workspace_bytes[checked(device)] = bytes; });
  m.def("clear_workspaces", [] { workspaces.clear(); });
  m.def("set_limit", [](DeviceIndex device, size_t bytes) {
    current_device = checked(device);  // as torch for cards, which does not set it back
    health[device].check();
    allocators[device].set_limit(bytes);
  });
  m.def("set_capability",
        [](DeviceIndex device, int major, int minor) { capabilities[checked(device)] = Capability{major, minor}; });
  m.def("capability", [](DeviceIndex device) {
    const Capability card = capabilities[checked(device)];
    return std::pair<int, int>{card.major, card.minor};
  });
  m.def("set_external", [](DeviceIndex device, size_t bytes) { allocators[checked(device)].set_external(bytes); });
  m.def("fail_after", [](DeviceIndex device, int64_t n) { allocators[checked(device)].fail_after(n); });
  m.def("set_allocation_error", [](DeviceIndex device, std::string text) { allocation_errors[checked(device)] = text; });
  m.def("set_kernel_error", [](DeviceIndex device, std::string text) { kernel_errors[checked(device)] = text; });
  m.def("empty_cache", [] { torch_allocator.emptyCache(); }, pybind11::call_guard<pybind11::gil_scoped_release>());
  m.def("synchronize", [](DeviceIndex device) { streams.synchronize_device(checked(device)); });
  m.def("watch_host_memory", &ProtectedPages::watch);
  m.def("take_races", [] {
    std::vector<std::string> races = streams.take_races();
    races.insert(races.end(), ProtectedPages::take_faults(),
                 "the host uses memory of a copy that is under way: synchronize is missing");
    return races;
  });
  m.def("empty_cache_calls", [] { return torch_allocator.empty_cache_calls.load(); });
  m.def("pinned", [] {
    return std::map<std::string, size_t>{{"operations", PinnedAllocator::operations()},
                                         {"bytes", PinnedAllocator::pinned_bytes()}};
  });
  m.def("die_after", [](DeviceIndex device, int64_t operations, std::string message, bool all_devices) {
    health[checked(device)].die_after(operations, std::move(message), all_devices);
  });
  m.def("hang", [](DeviceIndex device, int64_t operations) { health[checked(device)].hang(operations); });
  m.def("release", [](DeviceIndex device) { health[checked(device)].release(); });
  m.def("cure", [] {
    Health::cure();
    for (Health& each : health) {
      each.die_after(-1, "", false);
      each.release();
    }
  });
  m.def("reset_peaks", [](DeviceIndex device) { allocators[checked(device)].reset_peaks(); });
  m.def("reset_high_water", [](DeviceIndex device) { allocators[checked(device)].reset_high_water(); });
  m.def("usage", [](DeviceIndex device) {
    const Usage usage = allocators[checked(device)].usage();
    return std::map<std::string, size_t>{{"capacity", usage.capacity},
                                         {"limit", usage.limit},
                                         {"external", usage.external},
                                         {"allocated", usage.allocated},
                                         {"reserved", usage.reserved},
                                         {"peak_allocated", usage.peak_allocated},
                                         {"peak_reserved", usage.peak_reserved},
                                         {"high_water", usage.high_water},
                                         {"allocations", usage.allocations},
                                         {"failures", usage.failures}};
  });
  m.def("scalar_reads", [] { return scalar_reads.load(); });
  m.def("kernel_calls", [] { return kernel_calls.load(); });
  m.def("traffic", [] {
    return std::map<std::string, int64_t>{{"host_to_device", host_to_device},
                                          {"device_to_host", device_to_host},
                                          {"within_device", within_device},
                                          {"between_devices", between_devices}};
  });
}
