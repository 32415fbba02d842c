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

inline void look_at_peak() {
// Allocators say what they hold through the core library from then on.
#if TORCH_VERSION_MAJOR > 2 || TORCH_VERSION_MINOR >= 9
  constexpr int MOST_DEVICES = 16, BOTH_POOLS = 0;
  static std::atomic<int64_t> most[MOST_DEVICES];
  static auto* const allocator = dynamic_cast<c10::DeviceAllocator*>(c10::GetAllocator(c10::DeviceType::CUDA));
  auto* const tell = tell_peak.load(std::memory_order_relaxed);
  const int device = tell && allocator && allocator->initialized() ? c10::impl::VirtualGuardImpl(c10::DeviceType::CUDA).getDevice().index() : -1;
  if (device < 0 || device >= MOST_DEVICES) return;
  const int64_t peak = allocator->getDeviceStats(static_cast<c10::DeviceIndex>(device)).allocated_bytes[BOTH_POOLS].peak;
  int64_t before = most[device].load(std::memory_order_relaxed);
  while (peak > before && !most[device].compare_exchange_weak(before, peak)) {}
  if (peak > before) tell(device);
#endif
}

}  // namespace batchfit
