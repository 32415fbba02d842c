// What is chosen where a script would choose among numbers that nobody computed. A real run chooses, too, and any choice is as typical as
// another, so choices are spread evenly and counted as known; each is said (`assume`).
#pragma once
#include "tensors.h"
#include <ATen/core/PhiloxRNGEngine.h>

// src/runtime/devices.rs and memory.rs.
extern "C" int cudaDeviceGetAttribute(int* value, int attribute, int device);
extern "C" int cudaMemsetAsync(void* to, int value, size_t bytes, void* stream);

namespace batchfit {

// What an operator does with numbers that are not known.
enum class Choice {
  None,         // its results are not known either
  Counted,      // sizes are numbers that are read from the device, of a result (how many were found) or in between
  One,          // an index among many: tokens, classes
  Several,      // different indices among many: experts, beams, candidates
  Order,        // a permutation
  Overflow,     // whether gradients are finite
  Kept,         // boxes that survive (torchvision's nms)
};

inline Choice choice_of(const c10::FunctionSchema& schema) {
  static const std::map<std::string, Choice> choices = {
      {"aten::nonzero", Choice::Counted},   {"aten::masked_select", Choice::Counted},      {"aten::bincount", Choice::Counted}, {"aten::repeat_interleave", Choice::Counted},
      {"aten::_coalesce", Choice::Counted}, {"aten::linalg_matrix_exp", Choice::Counted},  {"aten::histc", Choice::Counted},    {"aten::multinomial", Choice::One},
      {"aten::argmax", Choice::One},        {"aten::argmin", Choice::One},                 {"aten::topk", Choice::Several},     {"aten::sort", Choice::Order},
      {"torchvision::nms", Choice::Kept},
      {"aten::_amp_foreach_non_finite_check_and_unscale_", Choice::Overflow},
  };
  const auto found = choices.find(schema.name());
  if (found != choices.end()) return found->second;
  if (schema.name().find("unique") != std::string::npos) return Choice::Counted;
  return schema.returns().size() == 2 && schema.returns()[1].name() == "indices" ? Choice::One : Choice::None;  // `max`, `median`, `mode` along a dimension
}

// Whether an operator, or its form in place, is of those that neighbours and the like are found by, and costs little even where it is given much.
inline bool decides(std::string name) {
  static const std::set<std::string> names = {"_cdist_forward", "add", "sub", "mul", "div", "pow", "sqrt", "abs", "sum", "norm", "linalg_vector_norm", "amin", "amax", "minimum", "maximum",
      "clamp", "clamp_min", "lt", "le", "gt", "ge", "eq", "ne", "bitwise_and", "bitwise_or", "bitwise_not", "logical_and", "logical_or", "logical_not", "where", "fill_", "masked_fill", "nonzero", "masked_select", "index", "equal",
      "_index_put_impl", "rsub"};
  name.erase(0, name.find("::") + 2);
  return names.count(name) || (!name.empty() && name.back() == '_' && names.count(name.substr(0, name.size() - 1)));
}

inline std::string environment(const char* name) { return getenv(name) ? getenv(name) : ""; }

// Inside an operator of which is known how much it keeps (nms), whatever masks hold; else negative.
inline thread_local int64_t kept = -1;
// Inside an operator that reads numbers to learn how large its result is: they are zeros, and no reason to doubt.
inline thread_local bool reads_zeros = false;

inline uint64_t draw() {
  static thread_local uint64_t state = 88172645463325252ull;  // xorshift64 (Marsaglia, 2003)
  state ^= state << 13, state ^= state >> 7, state ^= state << 17;
  return state;
}

// How many are found among `total` unknown things (`nonzero`, indexing by a mask): none, unless the run says otherwise.
inline int64_t count_among(const std::string& name, int64_t total) {
  static const double part = std::clamp(atof(environment("BATCHFIT_VGPU_FOUND").c_str()), 0.0, 1.0);
  if (kept >= 0) return kept;
  return std::max<int64_t>(std::llround(part * total), total && name.find("unique") != std::string::npos);
}

// An index among `n`. Ids that end a text lie at the ends of a vocabulary, and an untrained choice hardly ever falls on one of them: a
// sixteenth at each end is left out. A narrower choice would draw the same rows of a table more often than a card does.
inline int64_t one_of(int64_t n) { return n < 32 ? draw() % n : n / 16 + draw() % (n - n / 8); }

inline bool is_fillable(const Tensor& result) {
  return result.defined() && is_plain(result) && result.scalar_type() == c10::kLong && result.numel() && span(result) <= SMALL_INTEGERS;
}

// Fills what `unique` says beside what is different: which of `found` each is, or how often each came among the `total` that there are.
inline void fill_classes(const Tensor& result, int64_t found, int64_t total, bool is_which) {
  if (!is_fillable(result) || found <= 0) return;
  const Tensor each = at::arange(result.numel()), past = each.add(1).mul(total).div(found, "floor");
  copy_result(result, (is_which ? each.mul(found).div(result.numel(), "floor") : past - each.mul(total).div(found, "floor")).view(result.sizes()), true);
}

// Fills a result's indices; `dim` is where they were looked for, among `n`. Experts all get the same number of tokens, also over steps of one
// token each, unless the run asks for the worst: every token goes to the same ones.
inline void fill_choices(const Tensor& result, Choice choice, int64_t dim, int64_t n) {
  static std::atomic<uint64_t> turn{0};
  static const bool is_worst = environment("BATCHFIT_VGPU_EXPERTS") == "worst";
  const bool is_row = choice != Choice::One && result.dim(), is_many = choice == Choice::Several && n >= 1024;
  const int64_t row = is_row ? result.size(dim) : 1, step = is_many ? std::max<int64_t>(n / row, 1) : 1;
  // The looked-for dimension comes last while it is filled.
  const Tensor target = is_row ? on_cpu(result).movedim(dim, -1) : on_cpu(result), chosen = at::empty(target.sizes(), at::kLong);
  int64_t* index = chosen.data_ptr<int64_t>();
  for (int64_t i = 0; i < chosen.numel(); i += row) {
    const uint64_t start = choice == Choice::One ? one_of(n) : is_many ? draw() % n : choice == Choice::Order || is_worst ? 0 : turn.fetch_add(row);
    for (int64_t j = 0; j < row; j++) index[i + j] = (start + j * step) % n;
  }
  target.copy_(chosen);
  mark_known(result, true);
}

// Whether an operator asks if numbers are finite or zero, and what the answer is: those that nobody computed are finite, and no zeros.
// `isinf(x)` arrives as `abs(x) == inf`, `isfinite(x)` as `x == x` and `abs(x) != inf`, and some write `x != x`; gradients of `prod` and
// `cumprod` ask `x == 0`. A single number is a norm or a loss: above zero, and farther from it than a tolerance on either side.
inline std::optional<bool> answer_of_finite(const std::string& name, const Stack& args) {
  if (name == "aten::isnan" || name == "aten::isposinf" || name == "aten::isneginf") return false;
  if (args.size() < 2 || !args[0].isTensor() || !args[0].toTensor().defined() || !args[0].toTensor().is_floating_point()) return {};
  const Tensor& asked = args[0].toTensor();
  const bool is_equal = name == "aten::eq", is_above = name == "aten::gt" || name == "aten::ge";
  constexpr double TOLERANCE = 1e-3;
  const double bound = args[1].isScalar() ? args[1].toScalar().toDouble() : NAN;
  if ((is_above || name == "aten::lt" || name == "aten::le") && asked.numel() == 1 && std::abs(bound) <= TOLERANCE) return is_above == (bound >= 0);
  if (!is_equal && name != "aten::ne") return {};
  if (args[1].isTensor() && asked.is_same(args[1].toTensor())) return is_equal;
  return bound == 0 || std::isinf(bound) ? std::optional(!is_equal) : std::nullopt;
}

// Whether unknown whole numbers are said to equal the one that they are compared with. Levels and labels are compared with one after another, and
// each is one of them: the first, the finest level or the background, which most of an untrained detector's boxes are of.
inline bool is_first_asked(const Stack& args) {
  static thread_local std::pair<const void*, int64_t> first;
  if (args.size() < 2 || !args[0].isTensor() || !args[1].isInt() || !args[0].toTensor().dim() || !c10::isIntegralType(args[0].toTensor().scalar_type(), false)) return false;
  const std::pair<const void*, int64_t> asked = {args[0].toTensor().const_data_ptr(), args[1].toInt()};
  if (first.first != asked.first) first = asked;
  return first == asked;
}

// Copies of what is not known: where from, by where to.
inline std::map<uint64_t, uint64_t>& copies(std::unique_lock<std::mutex>& lock) {
  static std::mutex mutex;
  static auto* all = new std::map<uint64_t, uint64_t>;
  lock = std::unique_lock(mutex);
  return *all;
}

// Whether two tensors are equal of which one at least is not known. What a script compares it expects to be equal, but for parameters: each is trained
// for itself, unless it was copied from the other, or is zeros, as which numbers that nobody knows are saved and loaded again.
inline bool are_equal(const Tensor& a, const Tensor& b) {
  const auto is_trained = [](const Tensor& one) { return one.is_leaf() && one.requires_grad() && is_plain(one) && span(one) <= CARRIED; };
  const auto is_zeros = [](const Tensor& one) { return is_known(one) && !on_cpu(one).any().item<bool>(); };
  std::unique_lock<std::mutex> lock;
  const auto& all = copies(lock);
  const auto is_copy = [&](const Tensor& one, const Tensor& of) { return address(one) == address(of) || (all.count(address(one)) && all.at(address(one)) == address(of)); };
  c10::impl::ExcludeDispatchKeyGuard below(above_kernels());
  return !is_trained(a) || !is_trained(b) || is_copy(a, b) || is_copy(b, a) || is_zeros(a) || is_zeros(b);
}

// Fills a result of booleans with one answer.
inline void fill_answer(const Tensor& result, bool answer) {
  if (!is_plain(result) || span(result) > (answer ? SMALL_INTEGERS : SMALL_MASK)) return mark_unknown(result);
  // Zeros take nothing of the host.
  answer ? (void)memset(result.mutable_data_ptr(), 1, span(result)) : (void)cudaMemsetAsync(result.mutable_data_ptr(), 0, span(result), nullptr);
  mark_known(result, true);
}

// Random numbers as a card draws them, from the seed and the offset of the script's own generator: masks, lengths and boxes that a script draws on
// the GPU then have the sizes that they have there. The order is that of PyTorch's kernels (ATen/native/cuda/DistributionTemplates.h).
//
// Fills what an operator of this name draws into, before the real kernel moves the generator on; nothing where it draws otherwise.
inline std::optional<Stack> draw_as_card(const std::string& name, const Stack& args) {
  static const std::set<std::string> names = {"aten::random_", "aten::uniform_", "aten::normal_", "aten::bernoulli_", "aten::exponential_"};
  if (!names.count(name)) return {};
  const Tensor& to = args[0].toTensor();
  const bool is_whole = name == "aten::random_", is_normal = name == "aten::normal_", is_mask = name == "aten::bernoulli_";
  const Tensor given = is_mask && args[1].isTensor() ? args[1].toTensor() : Tensor();
  if (!to.is_non_overlapping_and_dense() || (given.defined() && !(to.is_contiguous() && given.sizes() == to.sizes()))) return {};
  if (is_whole ? args.size() < 3 || !args[args.size() - 2].isInt() : to.scalar_type() == at::kDouble) return {};
  uint64_t seed, offset;
  try {
    const at::Generator generator = args.back().isNone() ? at::globalContext().defaultGenerator(to.device()) : args.back().toGenerator();
    seed = generator.current_seed(), offset = generator.get_offset();
  } catch (const std::exception&) {
    return {};  // while a graph is captured
  }
  constexpr int THREADS_PER_SM = 39, SMS = 16;  // cudaDeviceAttr
  int threads_per_sm = 2048, sms = 1;
  cudaDeviceGetAttribute(&threads_per_sm, THREADS_PER_SM, to.device().index()), cudaDeviceGetAttribute(&sms, SMS, to.device().index());
  const int64_t n = to.numel(), threads = 256 * std::min<int64_t>((n + 255) / 256, sms * (threads_per_sm / 256));
  const int64_t base = is_whole && args.size() > 3 ? args[1].toInt() : 0;
  const uint64_t range = is_whole ? args[args.size() - 2].toInt() - base : 1;
  const int unroll = range >= 1ull << 28 ? 2 : 4;
  const Tensor chances = given.defined() ? on_cpu(given).to(at::kFloat).contiguous() : Tensor();
  const auto number = [&](size_t i) { return !is_whole && i + 1 < args.size() && args[i].isScalar() ? args[i].toScalar().toDouble() : 0.0; };
  const double a = number(1), b = number(2);
  const Tensor drawn = at::empty({n}, is_whole ? at::kLong : at::kFloat);
  for (int64_t i = 0; i < n; i++) {
    const int which = i % (threads * unroll) / threads;
    const auto word = [&](int which) {
      at::Philox4_32 engine(seed, chances.defined() ? i / 4 : i % threads, offset / 4 + (chances.defined() ? 0 : i / (threads * unroll)));
      while (which--) engine();
      return engine();
    };
    const auto uniform = [&](int which) { return std::fma((float)word(which), 0x1p-32f, 0x1p-33f); };
    if (is_whole) {
      drawn.data_ptr<int64_t>()[i] = (unroll == 2 ? (uint64_t)word(2 * which) << 32 | word(2 * which + 1) : word(which)) % range + base;
      continue;
    }
    float& value = drawn.data_ptr<float>()[i];
    if (is_normal) {
      const float s = std::sqrt(-2 * std::log(uniform(which & 2))), v = uniform(which | 1) * (float)(2 * M_PI);
      value = s * (which & 1 ? std::cos(v) : std::sin(v)) * b + a;
    } else if (chances.defined()) {
      value = uniform(i % 4) <= chances.data_ptr<float>()[i];
    } else {
      const float u = uniform(which);
      value = is_mask ? u < (float)a : name == "aten::exponential_" ? -std::log(u) / a : u * (float)(b - a) + a;
      if (name == "aten::uniform_" && value >= b) value = a;
    }
  }
  on_cpu(to).as_strided({n}, {1}).copy_(drawn);
  return Stack{on_cpu(to)};
}

}  // namespace batchfit
