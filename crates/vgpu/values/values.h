// Tensors of a virtual GPU: which of their bytes are known, the same bytes seen as tensors of the CPU, and what is chosen where a script would choose
// among numbers that nobody computed. A real run chooses, too, and any choice is as typical as another, so choices are spread evenly and counted as known;
// each is said (`assume`).
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
#include <ATen/core/PhiloxRNGEngine.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <c10/util/ScopeExit.h>

// src/python.rs, src/runtime/launch.rs, memory.rs and devices.rs.
extern "C" {
int batchfit_vgpu_is_device(uint64_t address);
int batchfit_vgpu_is_known(uint64_t address, uint64_t bytes);
void batchfit_vgpu_mark(uint64_t address, uint64_t bytes, int is_known);
void batchfit_vgpu_expect(int64_t count);
void batchfit_vgpu_say(const char* line);
// Launches inside an operator that is wrapped are left to this object; outside they make what they were given unknown.
void batchfit_vgpu_in_operator(int delta);
int cudaMemsetAsync(void* to, int value, size_t bytes, void* stream);
int cudaDeviceGetAttribute(int* value, int attribute, int device);
}

namespace batchfit {

using at::Tensor;
using c10::DispatchKey;
using c10::DispatchKeySet;
using c10::IValue;
using torch::jit::Stack;

// What is computed: small tensors; integers and booleans are masks, labels and indices, by which scripts decide, so larger ones, too. Positions, distances
// and what is compared with them lead to indices: what is made of small tensors, and what `DECIDES` then takes; of large masks `any` and `all` (operators.def).
constexpr size_t SMALL = 64 << 10, SMALL_INTEGERS = 4 << 20, SMALL_DECIDING = 32 << 20, SMALL_MASK = 256 << 20;
// Copies between host and device that the preload carries out itself; fresh results that are zeroed where they are not known, which larger ones are when
// they are read; the grain of what is known; and the largest read that a script may decide by (src/memory/bytes.rs, known.rs).
constexpr size_t CARRIED = 1 << 20, ZEROED = 4 << 10, GRAIN = 512, DECISION = 64;

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

inline bool is_small(const Tensor& tensor, size_t most_integers, size_t most = SMALL) {
  return is_plain(tensor) && span(tensor) <= std::max(most, is_integral(tensor) ? most_integers : 0);
}

inline bool is_known(const Tensor& tensor) { return !span(tensor) || batchfit_vgpu_is_known(address(tensor), span(tensor)); }

// Marks what was written. Of a grain a part is known only where the rest was, is no part of the storage, or where nobody else has seen the storage.
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
  if (is_plain(tensor)) batchfit_vgpu_mark(address(tensor), span(tensor), 0);
}

// Sets every byte of a result, unless it is larger than `most`. Many zeros take nothing of the host.
inline void fill(const Tensor& tensor, int byte, size_t most, bool is_known) {
  if (!is_plain(tensor) || span(tensor) > most) return;
  !byte && span(tensor) > CARRIED ? (void)cudaMemsetAsync(tensor.mutable_data_ptr(), 0, span(tensor), nullptr) : (void)memset(tensor.mutable_data_ptr(), byte, span(tensor));
  is_known ? mark_known(tensor, true) : mark_unknown(tensor);
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

// The tensors of an argument or a result; of a sparse one its values, which are never computed. Its indices were made by operators of plain tensors
// inside the kernel, which followed them, but for those that are coalesced (values.cpp).
inline auto tensors_of(const IValue& value) {
  c10::SmallVector<Tensor, 3> found;
  value.visit([&](const IValue& one) {
    if (one.isTensor() && one.toTensor().defined()) found.push_back(one.toTensor().is_sparse() ? one.toTensor()._values() : one.toTensor());
    return one.isTensor();
  });
  return found;
}

// Counts what was assumed, and says so at every power of two, since steps assume the same; `other_bound` is the setting, if any, that assumes the other.
inline void assume(const std::string& what, const std::string& other_bound = "") {
  static std::mutex mutex;
  static auto* counts = new std::map<std::string, uint64_t>;
  std::lock_guard<std::mutex> lock(mutex);
  const uint64_t count = ++(*counts)[what];
  if (std::has_single_bit(count)) batchfit_vgpu_say(("assumed\t" + what + "\t" + std::to_string(count) + (other_bound.empty() ? "" : "\t" + other_bound)).c_str());
}

// What is known of an operator by its name.
enum What : unsigned {
  ALONE = 1 << 0,
  OVERWRITES = 1 << 1,
  DRAWS = 1 << 2,     // random numbers that are drawn as a card does
  COUNTS = 1 << 3,    // its kernel reads from the device how much it found
  READS = 1 << 4,     // it is made of operators whose results it reads to learn how large its own is: unknown ones are zeros, and no reason to doubt
  ASKS = 1 << 5,      // compares numbers, or says whether some are so
  UNSCALES = 1 << 6,  // says whether gradients are finite
  // Results are indices, which are chosen where numbers are not known:
  ONE = 1 << 7,      // one among many: tokens, classes
  SEVERAL = 1 << 8,  // different ones among many: experts, beams, candidates
  ORDER = 1 << 9,    // a permutation
};

struct Facts {
  unsigned what = 0;
  size_t most_integers = SMALL_INTEGERS, most = SMALL;  // larger tensors are not computed: whole numbers, others
};
constexpr Facts DECIDES{0, SMALL_DECIDING, SMALL_DECIDING};

// An operator in place is as the other.
inline Facts facts_of(std::string name) {
  static const std::map<std::string, Facts> all = {
#include "operators.def"
  };
  if (!all.count(name) && !name.empty() && name.back() == '_') name.pop_back();
  return all.count(name) ? all.at(name) : Facts();
}

// Random numbers of the script's own generators are not touched: those of the device advance in the real kernel, those of the CPU stay.
inline const auto& own_generator = *new at::Generator(at::detail::createCPUGenerator(20));

// Fills what `unique` says beside what is different: which of `found` each is, or how often each came among the `total` that there are.
inline void fill_classes(const Tensor& result, int64_t found, int64_t total, bool is_which) {
  if (!is_small(result, SMALL_INTEGERS) || !result.numel() || found <= 0) return;
  const auto spread = [](int64_t over, int64_t n, int64_t all) { return at::arange(over).mul(all).div(n, "floor"); };
  copy_result(result, (is_which ? spread(result.numel(), result.numel(), found) : spread(found + 1, found, total).diff()).view(result.sizes()), true);
}

// Fills a result's indices; `dim` is where they were looked for, among `n`. Experts all get the same number of tokens, also over steps of one
// token each, unless the run asks for the worst: every token goes to the same ones. Ids that end a text lie at the ends of a vocabulary, and an
// untrained choice hardly ever falls on one: a sixteenth at each end is left out. Fewer would be drawn more often each than on a card.
inline void fill_choices(const Tensor& result, unsigned what, int64_t dim, int64_t n) {
  static std::atomic<int64_t> turn{0};
  static const bool is_worst = std::string(getenv("BATCHFIT_VGPU_EXPERTS") ?: "") == "worst";
  const bool is_one = what & ONE, is_many = what & SEVERAL && n >= 1024;
  // The looked-for dimension comes last while it is filled.
  const Tensor target = is_one || !result.dim() ? on_cpu(result).unsqueeze(-1) : on_cpu(result).movedim(dim, -1);
  const int64_t row = target.size(-1), end = is_one && n >= 32 ? n / 16 : 0;
  Tensor start = at::zeros({target.numel() / row, 1}, at::kLong);
  if (is_one || is_many) start.random_(end, n - end, own_generator);
  else if (what & SEVERAL && !is_worst) start = at::arange(start.numel()).mul(row).add(turn.fetch_add(target.numel())).unsqueeze(-1);
  target.copy_(start.add(at::arange(row).mul(is_many ? std::max<int64_t>(n / row, 1) : 1)).remainder(n).view(target.sizes()));
  mark_known(result, true);
}

// What an operator that `ASKS` says of numbers that nobody computed, and whether that is sure, or a guess, and said to be one when it is read. They are
// finite, and no zeros. `isinf(x)` arrives as `abs(x) == inf`, `isfinite(x)` as `x == x` and `abs(x) != inf`, and some write `x != x`; gradients of
// `prod` and `cumprod` ask `x == 0`. A single number is a norm or a loss: above zero, and farther from it than a tolerance on either side. Guesses:
// arguments are valid (`all`), a search goes on (`any`, but not whether least are above greatest), one number keeps to a bound that is another, few are
// what is left out (`!=`). Rows of which any is found are few, too, as outliers of int8. Levels and labels are compared with one after another, and each
// is the first: the finest level, or the background, as most of an untrained detector's boxes are.
inline std::pair<bool, bool> answer(const std::string& name, const Stack& args, const Tensor& result) {
  static thread_local const void* ordered = nullptr;  // where was asked last whether numbers are above others, or one that is no zero
  static thread_local std::pair<const void*, int64_t> first;
  const Tensor& of = args[0].toTensor();
  if (name == "aten::any") return {result.numel() == 1 && of.const_data_ptr() != ordered, false};
  if (name == "aten::all") return {true, false};
  if (args.size() < 2) return {false, true};  // `isnan`, `isposinf`, `isneginf`
  const bool is_equal = name == "aten::eq", is_unequal = name == "aten::ne", is_bound = name == "aten::le" || name == "aten::ge";
  const double bound = args[1].isScalar() ? args[1].toScalar().toDouble() : NAN;
  if (of.is_floating_point() && (is_equal || is_unequal)) {
    if (args[1].isTensor() && of.is_same(args[1].toTensor())) return {is_equal, true};
    if (bound == 0 || std::isinf(bound)) return {is_unequal, true};
  } else if (of.is_floating_point() && of.numel() == 1 && std::abs(bound) <= 1e-3) {
    return {(name == "aten::gt" || name == "aten::ge") == (bound >= 0), true};
  }
  if (is_equal && args[1].isInt() && of.dim() && c10::isIntegralType(of.scalar_type(), false)) {
    if (first.first != of.const_data_ptr()) first = {of.const_data_ptr(), args[1].toInt()};
    if (first.second == args[1].toInt()) return {true, false};
  }
  if (is_unequal || (is_bound && result.numel() == 1)) return {true, false};
  if (is_equal ? args[1].isScalar() : args[1].isTensor() && !is_bound) ordered = result.const_data_ptr();
  return {};
}

// Whether two tensors are equal of which one at least is not known. What a script compares it expects to be equal, but for parameters: each is trained
// for itself, and begins with bytes of its own (`Kernel::lose`), unless it was copied from the other, or is zeros, as which numbers that nobody knows
// are saved and loaded again.
inline bool are_equal(const Tensor& a, const Tensor& b) {
  const auto is_trained = [](const Tensor& one) { return one.is_leaf() && one.requires_grad() && is_plain(one) && span(one) <= CARRIED; };
  const auto is_zeros = [](const Tensor& one) { return is_known(one) && !on_cpu(one).any().item<bool>(); };
  return !is_trained(a) || !is_trained(b) || !memcmp(a.const_data_ptr(), b.const_data_ptr(), std::min(span(a), span(b))) || is_zeros(a) || is_zeros(b);
}

// Random numbers as a card draws them, from the seed and the offset of the script's own generator: masks, lengths and boxes that a script draws on
// the GPU then have the sizes that they have there. The order is that of PyTorch's kernels (ATen/native/cuda/DistributionTemplates.h). To be asked
// before the real kernel moves the generator on; nothing where it draws otherwise.
inline std::optional<Tensor> draw_as_card(const std::string& name, const Stack& args) {
  const Tensor& to = args[0].toTensor();
  const bool is_whole = name == "aten::random_", is_normal = name == "aten::normal_", is_mask = name == "aten::bernoulli_";
  const bool is_each = is_mask && args[1].isTensor();  // has a chance of its own
  if (!to.is_non_overlapping_and_dense() || (is_each && !(to.is_contiguous() && args[1].toTensor().sizes() == to.sizes()))) return {};
  if (is_whole ? args.size() < 3 || !args[args.size() - 2].isInt() : to.scalar_type() == at::kDouble) return {};
  const at::Generator generator = args.back().isNone() ? at::globalContext().defaultGenerator(to.device()) : args.back().toGenerator();
  const uint64_t seed = generator.current_seed(), offset = generator.get_offset();  // an error while a graph is captured
  constexpr int THREADS_PER_SM = 39, SMS = 16;  // cudaDeviceAttr
  int threads_per_sm = 2048, sms = 1;
  cudaDeviceGetAttribute(&threads_per_sm, THREADS_PER_SM, to.device().index()), cudaDeviceGetAttribute(&sms, SMS, to.device().index());
  const int64_t n = to.numel(), threads = 256 * std::min<int64_t>((n + 255) / 256, sms * (threads_per_sm / 256));
  const int64_t base = is_whole && args.size() > 3 ? args[1].toInt() : 0;
  const uint64_t range = is_whole ? args[args.size() - 2].toInt() - base : 1;
  const int unroll = range >= 1ull << 28 ? 2 : 4;  // numbers of a wide range take two words each
  const Tensor chances = is_each ? on_cpu(args[1].toTensor()).to(at::kFloat).contiguous() : Tensor(), drawn = at::empty({n}, is_whole ? at::kLong : at::kFloat);
  const auto number = [&](size_t i) { return args[i].isScalar() ? args[i].toScalar().toDouble() : 0.0; };
  const double a = number(1), b = number(2);
  for (int64_t i = 0; i < n; i++) {
    // Four words of a thread are for elements that lie all threads apart, or for neighbours.
    const int which = is_each ? i % 4 : i / threads % unroll;
    at::Philox4_32 engine(seed, is_each ? i / 4 : i % threads, offset / 4 + (is_each ? 0 : i / (threads * unroll)));
    std::array<uint32_t, 4> words;
    for (uint32_t& word : words) word = engine();
    const auto uniform = [&](int which) { return std::fma((float)words[which], 0x1p-32f, 0x1p-33f); };
    const uint64_t word = unroll == 2 ? (uint64_t)words[2 * which] << 32 | words[2 * which + 1] : words[which];
    const float u = uniform(which), angle = uniform(which | 1) * (float)(2 * M_PI);
    float& value = static_cast<float*>(drawn.data_ptr())[i];
    if (is_whole) static_cast<int64_t*>(drawn.data_ptr())[i] = word % range + base;
    else if (is_normal) value = std::sqrt(-2 * std::log(uniform(which & 2))) * (which & 1 ? std::cos(angle) : std::sin(angle)) * b + a;
    else if (is_mask) value = is_each ? u <= chances.data_ptr<float>()[i] : u < (float)a;
    else if (name == "aten::exponential_") value = -std::log(u) / a;
    else if ((value = u * (float)(b - a) + a) >= b) value = a;
  }
  return drawn.to(to.scalar_type()).as_strided(to.sizes(), to.strides());
}

}  // namespace batchfit
