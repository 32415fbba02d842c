// What python/hooks.py is told of operators: each that begins, until it has heard enough, and when more is allocated than ever, right after the
// operator that asked for it: what is at work then is at work at the peak.
#pragma once
#include "tensors.h"
#include <c10/core/CachingDeviceAllocator.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <torch/version.h>

namespace batchfit {

inline std::atomic<void (*)()> tell_operator{nullptr};
inline std::atomic<void (*)(int)> tell_peak{nullptr};

inline void look_at_operator() {
  if (auto* const tell = tell_operator.load(std::memory_order_relaxed)) tell();
}

inline void look_at_peak() {
// Allocators say what they hold through the core library from then on.
#if TORCH_VERSION_MAJOR > 2 || TORCH_VERSION_MINOR >= 9
  auto* const tell = tell_peak.load(std::memory_order_relaxed);
  if (!tell) return;
  static auto* const allocator = dynamic_cast<c10::DeviceAllocator*>(c10::GetAllocator(c10::DeviceType::CUDA));
  constexpr int MOST_DEVICES = 16;
  static std::atomic<int64_t> most[MOST_DEVICES];
  const int device = c10::impl::VirtualGuardImpl(c10::DeviceType::CUDA).getDevice().index();
  if (!allocator || !allocator->initialized() || device < 0 || device >= MOST_DEVICES) return;
  constexpr int ALL = 0;  // of both pools
  const int64_t peak = allocator->getDeviceStats(static_cast<c10::DeviceIndex>(device)).allocated_bytes[ALL].peak;
  int64_t before = most[device].load(std::memory_order_relaxed);
  while (peak > before && !most[device].compare_exchange_weak(before, peak)) {}
  if (peak > before) tell(device);
#endif
}

}  // namespace batchfit
