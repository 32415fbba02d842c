// Tensors of a virtual GPU: which of their bytes are known, and the same bytes seen as tensors of the CPU.
#pragma once
// All of the standard library, which PyTorch includes itself, has to be read before `private` is another word.
#include <bits/stdc++.h>
// An operator keeps its kernels to itself: before PyTorch 2.9 there is no other way to them.
#define private public
#include <ATen/core/dispatch/Dispatcher.h>
#undef private
#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/EmptyTensor.h>
#include <ATen/SparseTensorImpl.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <c10/util/ScopeExit.h>
#include <torch/library.h>

// src/python.rs and src/runtime/launch.rs.
extern "C" {
int batchfit_vgpu_is_device(uint64_t address);
int batchfit_vgpu_is_known(uint64_t address, uint64_t bytes);
void batchfit_vgpu_mark(uint64_t address, uint64_t bytes, int is_known);
void batchfit_vgpu_expect(int64_t count);
void batchfit_vgpu_say(const char* line);
// Launches inside an operator that is wrapped are left to this object; outside they make what they were given unknown.
void batchfit_vgpu_in_operator(int delta);
}

namespace batchfit {

using at::Tensor;
using c10::DispatchKey;
using c10::DispatchKeySet;
using c10::IValue;
using torch::jit::Stack;
using Tensors = c10::SmallVector<Tensor, 3>;

// What is computed: small tensors; integers and booleans are masks, labels and indices, by which scripts decide, so larger ones, too.
constexpr size_t SMALL = 64 << 10, SMALL_INTEGERS = 4 << 20;
// Positions, distances and what is compared with them lead to indices: what is made of small tensors, and what `decides` then takes (choices.h).
constexpr size_t SMALL_DECIDING = 32 << 20;
// `any` and `all` of a large mask are computed as well.
constexpr size_t SMALL_MASK = 256 << 20;
// Copies between host and device that the preload carries out itself (`CARRIED` in src/memory/bytes.rs).
constexpr size_t CARRIED = 1 << 20;
// A fresh result up to this size is zeroed when it is not known; larger ones are when they are read (src/memory/bytes.rs).
constexpr size_t ZEROED = 4 << 10;
// The grain of what is known (src/memory/known.rs).
constexpr uint64_t GRAIN = 512;

inline uint64_t address(const Tensor& tensor) { return reinterpret_cast<uint64_t>(tensor.const_data_ptr()); }
inline bool is_integral(const Tensor& tensor) { return c10::isIntegralType(tensor.scalar_type(), true); }

// Bytes from the first element to the last.
inline size_t span(const Tensor& tensor) { return at::detail::computeStorageNbytes(tensor.sizes(), tensor.strides(), tensor.element_size()); }

// A tensor of strides on a virtual GPU, whose bytes can be followed.
inline bool is_plain(const Tensor& tensor) {
  static const DispatchKeySet others({DispatchKey::Python, DispatchKey::Quantized, DispatchKey::NestedTensor, DispatchKey::Conjugate, DispatchKey::Negative});
  return tensor.is_cuda() && tensor.layout() == c10::kStrided && !tensor.key_set().has_any(others) && tensor.has_storage() &&
         (!tensor.numel() || batchfit_vgpu_is_device(address(tensor)));
}

inline at::SparseTensorImpl* sparse(const Tensor& tensor) { return static_cast<at::SparseTensorImpl*>(tensor.unsafeGetTensorImpl()); }

// What a kernel writes of a tensor: of a sparse one its values, which are never computed. Its indices were made by operators of plain tensors inside
// the kernel, which followed them, but for those that are coalesced (`coalesced_indices` in kernel.h).
inline Tensor written(const Tensor& tensor) { return tensor.layout() == c10::kSparse ? sparse(tensor)->values() : tensor; }

inline bool is_small(const Tensor& tensor, size_t most_integers, size_t most = SMALL) {
  return is_plain(tensor) && span(tensor) <= std::max(most, is_integral(tensor) ? most_integers : 0);
}

inline bool is_known(const Tensor& tensor) { return !span(tensor) || batchfit_vgpu_is_known(address(tensor), span(tensor)); }

// Marks what was written. What a part of a grain holds is known only where the rest of it was, is no part of the storage, or where nobody else has
// seen the storage.
inline void mark_known(const Tensor& tensor, bool is_fresh) {
  if (!is_plain(tensor)) return;
  uint64_t first = address(tensor), last = first + span(tensor);
  const uint64_t start = reinterpret_cast<uint64_t>(tensor.storage().data()), end = start + tensor.storage().nbytes();
  if (!is_fresh && !tensor.is_non_overlapping_and_dense() && (first != start || last != end)) return;
  first = (first + GRAIN - 1) / GRAIN * GRAIN;
  if (!is_fresh && last != end) last = last / GRAIN * GRAIN;
  if (first < last) batchfit_vgpu_mark(first, last - first, 1);
}

inline void mark_unknown(const Tensor& tensor) {
  const Tensor part = written(tensor);
  if (is_plain(part) && span(part)) batchfit_vgpu_mark(address(part), span(part), 0);
}

// Booleans of which a guess lies there where they are not known.
inline bool is_guessed(const Tensor& tensor) { return tensor.scalar_type() == c10::kBool && is_plain(tensor) && span(tensor) <= CARRIED; }

// A fresh result that nobody knows reads as zero instead of what its memory held before.
inline void forget(const Tensor& tensor) {
  const Tensor part = written(tensor);
  // A sparse tensor may have been made of tensors that were there before.
  if (!is_plain(part) || (!part.is_same(tensor) && part.storage().use_count() > 1)) return;
  mark_unknown(part);
  if (span(part) <= ZEROED || is_guessed(part)) memset(part.mutable_data_ptr(), 0, span(part));
}

// Whose operators run on the CPU below everything that a program can put above kernels.
inline DispatchKeySet above_kernels() {
  static const DispatchKeySet keys = c10::autograd_dispatch_keyset_with_ADInplaceOrView | c10::autocast_dispatch_keyset |
                                     DispatchKeySet({DispatchKey::Python, DispatchKey::PythonTLSSnapshot, DispatchKey::Functionalize,
                                                     DispatchKey::FuncTorchDynamicLayerFrontMode, DispatchKey::FuncTorchDynamicLayerBackMode});
  return keys;
}

// A tensor of the CPU over the same bytes: an address of a virtual GPU can be followed.
inline Tensor on_cpu(const Tensor& tensor) {
  const auto options = at::TensorOptions().dtype(tensor.dtype()).device(c10::kCPU);
  return at::for_blob(const_cast<void*>(tensor.const_data_ptr()), tensor.sizes()).strides(tensor.strides()).options(options).make_tensor();
}

// Copies a result to where the kernel would have left it.
inline void copy_result(const Tensor& to, const Tensor& from, bool is_fresh) {
  if (!is_plain(to) || to.sizes() != from.sizes()) return mark_unknown(to);
  if (to.numel() && address(to) != address(from)) on_cpu(to).copy_(from);
  mark_known(to, is_fresh);
}

// The tensors of an argument or a result.
inline Tensors tensors_of(const IValue& value) {
  Tensors found;
  value.visit([&](const IValue& one) {
    if (one.isTensor() && one.toTensor().defined()) found.push_back(one.toTensor());
    return one.isTensor();
  });
  return found;
}

inline void say(const std::string& line) { batchfit_vgpu_say(line.substr(0, 1000).c_str()); }

// Counts what was assumed, and says so at every power of two: a step makes the same assumptions as the one before.
// `other_bound` is the setting, if any, under which the other bound is assumed.
inline void assume(const std::string& what, const std::string& other_bound = "") {
  static std::mutex mutex;
  static auto* counts = new std::map<std::string, uint64_t>;
  std::lock_guard<std::mutex> lock(mutex);
  const uint64_t count = ++(*counts)[what];
  if (!(count & (count - 1))) say("assumed\t" + what + "\t" + std::to_string(count) + (other_bound.empty() ? "" : "\t" + other_bound));
}

}  // namespace batchfit
