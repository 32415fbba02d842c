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
#include <ATen/SparseCsrTensorImpl.h>
#include <ATen/SparseTensorImpl.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <sys/mman.h>
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

// A tensor of strides, whose bytes can be followed.
inline bool is_plain(const Tensor& tensor) {
  static const DispatchKeySet others({DispatchKey::Python, DispatchKey::Quantized, DispatchKey::NestedTensor});
  return tensor.is_cuda() && tensor.layout() == c10::kStrided && !tensor.key_set().has_any(others) && tensor.has_storage();
}

// Bytes from the first element to the last.
inline size_t span(const Tensor& tensor) {
  if (!tensor.numel()) return 0;
  if (tensor.is_non_overlapping_and_dense()) return tensor.nbytes();
  int64_t last = 1;
  for (int64_t dim = 0; dim < tensor.dim(); dim++) last += (tensor.size(dim) - 1) * std::abs(tensor.stride(dim));
  return last * tensor.element_size();
}

inline bool is_integral(const Tensor& tensor) { return c10::isIntegralType(tensor.scalar_type(), true); }

using Tensors = c10::SmallVector<Tensor, 3>;

inline at::SparseTensorImpl* sparse(const Tensor& tensor) { return static_cast<at::SparseTensorImpl*>(tensor.unsafeGetTensorImpl()); }

// The plain tensors that a sparse one consists of; a plain one itself.
inline Tensors parts(const Tensor& tensor) {
  const auto layout = tensor.layout();
  if (layout == c10::kSparse) return {sparse(tensor)->indices(), sparse(tensor)->values()};
  if (layout == c10::kSparseCsr || layout == c10::kSparseCsc || layout == c10::kSparseBsr || layout == c10::kSparseBsc) {
    auto* compressed = static_cast<at::SparseCsrTensorImpl*>(tensor.unsafeGetTensorImpl());
    return {compressed->compressed_indices(), compressed->plain_indices(), compressed->values()};
  }
  return {tensor};
}

inline bool is_small(const Tensor& tensor, size_t most_integers, size_t most = SMALL) {
  for (const Tensor& part : parts(tensor)) {
    if (!is_plain(part)) return false;
    const size_t bytes = span(part);
    if (bytes > std::max(most, is_integral(part) ? most_integers : 0)) return false;
    if (bytes && !batchfit_vgpu_is_device(address(part))) return false;
  }
  return true;
}

inline bool is_known(const Tensor& tensor) {
  for (const Tensor& part : parts(tensor)) if (const size_t bytes = span(part); bytes && !batchfit_vgpu_is_known(address(part), bytes)) return false;
  return true;
}

// Marks what was written. What a part of a grain holds is known only where the rest of it was, or is no part of the storage, or where
// nobody else has seen the storage.
inline void mark_known(const Tensor& tensor, bool is_fresh) {
  for (const Tensor& part : parts(tensor)) {
    const size_t bytes = is_plain(part) ? span(part) : 0;
    if (!bytes) continue;
    uint64_t first = address(part), last = first + bytes;
    const auto& storage = part.storage();
    const uint64_t start = reinterpret_cast<uint64_t>(storage.data()), end = start + storage.nbytes();
    if (!is_fresh && (first != start || last != end)) {
      if (!part.is_non_overlapping_and_dense()) continue;
      if (first != start) first = (first + GRAIN - 1) / GRAIN * GRAIN;
      if (last != end) last = last / GRAIN * GRAIN;
    }
    if (first < last) batchfit_vgpu_mark(first, last - first, 1);
  }
}

inline void mark_unknown(const Tensor& tensor) {
  for (const Tensor& part : parts(tensor))
    if (const size_t bytes = is_plain(part) ? span(part) : 0) batchfit_vgpu_mark(address(part), bytes, 0);
}

// Booleans of which a guess lies there where they are not known.
inline bool is_guessed(const Tensor& tensor) { return tensor.scalar_type() == c10::kBool && is_plain(tensor) && span(tensor) <= CARRIED && batchfit_vgpu_is_device(address(tensor)); }

// A fresh result that nobody knows reads as zero instead of what its memory held before.
inline void forget(const Tensor& tensor) {
  for (const Tensor& part : parts(tensor)) {
    // A sparse tensor may have been made of tensors that were there before.
    if (!is_plain(part) || (!part.is_same(tensor) && part.storage().use_count() > 1)) continue;
    mark_unknown(part);
    const size_t bytes = span(part);
    if (bytes && (bytes <= ZEROED || is_guessed(part)) && batchfit_vgpu_is_device(address(part))) memset(part.mutable_data_ptr(), 0, bytes);
  }
}

// Whose operators run on the CPU below everything that a program can put above kernels.
inline DispatchKeySet above_kernels() {
  static const DispatchKeySet keys = c10::autograd_dispatch_keyset_with_ADInplaceOrView | c10::autocast_dispatch_keyset |
                                     DispatchKeySet({DispatchKey::Python, DispatchKey::PythonTLSSnapshot, DispatchKey::Functionalize,
                                                     DispatchKey::FuncTorchDynamicLayerFrontMode, DispatchKey::FuncTorchDynamicLayerBackMode});
  return keys;
}

inline Tensor plain_on_cpu(const Tensor& tensor) {
  const auto options = at::TensorOptions().dtype(tensor.dtype()).device(c10::kCPU);
  if (!tensor.numel()) return at::empty_strided(tensor.sizes(), tensor.strides(), options);
  Tensor same = at::for_blob(const_cast<void*>(tensor.const_data_ptr()), tensor.sizes()).strides(tensor.strides()).options(options).make_tensor();
  if (tensor.is_conj()) same = same.conj();
  if (tensor.is_neg()) same = same._neg_view();
  return same;
}

// A tensor of the CPU over the same bytes: an address of a virtual GPU can be followed.
inline Tensor on_cpu(const Tensor& tensor) {
  if (tensor.layout() == c10::kStrided) return plain_on_cpu(tensor);
  Tensors own = parts(tensor);
  for (Tensor& part : own) part = plain_on_cpu(part);
  if (tensor.layout() == c10::kSparse) return at::_sparse_coo_tensor_unsafe(own[0], own[1], tensor.sizes())._coalesced_(sparse(tensor)->coalesced());
  return at::_sparse_compressed_tensor_unsafe(own[0], own[1], own[2], tensor.sizes(), own[2].options().layout(tensor.layout()));
}

// Whether the bytes of two plain tensors mean the same.
inline bool are_same(const Tensor& a, const Tensor& b) {
  return a.scalar_type() == b.scalar_type() && a.sizes() == b.sizes() && a.is_contiguous() && b.is_contiguous() && a.is_conj() == b.is_conj() && a.is_neg() == b.is_neg();
}

// Copies a result to where the kernel would have left it.
inline void copy_result(const Tensor& to, const Tensor& from, bool is_fresh) {
  const Tensors parts_to = parts(to), parts_from = parts(from);
  if (parts_to.size() != parts_from.size()) return mark_unknown(to);
  for (size_t i = 0; i < parts_to.size(); i++) {
    const Tensor &a = parts_to[i], &b = parts_from[i];
    if (!is_plain(a) || a.sizes() != b.sizes()) {
      mark_unknown(a);
      continue;
    }
    if (a.numel() && a.const_data_ptr() != b.const_data_ptr()) {
      if (are_same(a, b) && !a.is_conj() && !a.is_neg())
        memcpy(a.mutable_data_ptr(), b.const_data_ptr(), a.nbytes());
      else
        plain_on_cpu(a).copy_(b);
    }
    mark_known(a, is_fresh);
  }
}

// Adds each tensor of an argument or a result.
inline void add_tensors(const IValue& value, Tensors& to) {
  if (value.isTensor()) {
    if (value.toTensor().defined()) to.push_back(value.toTensor());
  } else if (value.isList()) {
    for (const IValue& element : value.toListRef()) add_tensors(element, to);
  }
}

inline Tensors tensors_of(const IValue& value) {
  Tensors found;
  add_tensors(value, found);
  return found;
}

inline void say(const std::string& line) { batchfit_vgpu_say(line.substr(0, 1000).c_str()); }

// Counts what was assumed, and says so at every power of two: a step makes the same assumptions as the one before.
inline void assume(const std::string& what) {
  static std::mutex mutex;
  static auto* counts = new std::map<std::string, uint64_t>;
  uint64_t count;
  {
    std::lock_guard<std::mutex> lock(mutex);
    count = ++(*counts)[what];
  }
  if (!(count & (count - 1))) say("assumed\t" + what + "\t" + std::to_string(count));
}

}  // namespace batchfit
