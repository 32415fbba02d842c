// What is chosen where a script would choose among numbers that nobody computed. A real run chooses, too, and any choice is as typical as
// another, so choices are spread evenly and counted as known; each is said (`assume`).
#pragma once
#include "tensors.h"

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

inline Choice choice_of(const std::string& name) {
  static const std::map<std::string, Choice> choices = {
      {"aten::nonzero", Choice::Counted},          {"aten::_unique", Choice::Counted},      {"aten::_unique2", Choice::Counted},
      {"aten::unique_dim", Choice::Counted},       {"aten::unique_consecutive", Choice::Counted},
      {"aten::unique_dim_consecutive", Choice::Counted},
      {"aten::masked_select", Choice::Counted},    {"aten::bincount", Choice::Counted},     {"aten::repeat_interleave", Choice::Counted},
      {"aten::_coalesce", Choice::Counted},        {"aten::linalg_matrix_exp", Choice::Counted},
      {"aten::multinomial", Choice::One},          {"aten::argmax", Choice::One},
      {"aten::argmin", Choice::One},               {"aten::max", Choice::One},              {"aten::min", Choice::One},
      {"aten::kthvalue", Choice::One},             {"aten::median", Choice::One},           {"aten::nanmedian", Choice::One},
      {"aten::mode", Choice::One},                 {"aten::topk", Choice::Several},         {"aten::sort", Choice::Order},
      {"aten::_amp_foreach_non_finite_check_and_unscale_", Choice::Overflow},
      {"torchvision::nms", Choice::Kept},
  };
  const auto found = choices.find(name);
  return found == choices.end() ? Choice::None : found->second;
}

// Whether an operator, or its form in place, is of those that neighbours and the like are found by, and costs little even where it is given much.
inline bool decides(std::string name) {
  static const std::set<std::string> names = {"_cdist_forward", "add", "sub", "mul", "div", "pow", "sqrt", "abs", "sum", "norm", "linalg_vector_norm", "amin", "amax", "minimum", "maximum",
      "clamp", "clamp_min", "lt", "le", "gt", "ge", "eq", "ne", "bitwise_and", "bitwise_or", "bitwise_not", "logical_and", "logical_or", "logical_not", "where", "fill_", "nonzero", "masked_select", "index"};
  name.erase(0, name.find("::") + 2);
  if (names.count(name)) return true;
  if (!name.empty() && name.back() == '_') name.pop_back();
  return names.count(name);
}

inline std::string environment(const char* name) { return getenv(name) ? getenv(name) : ""; }

// Which part of unknown things is found (`nonzero`, indexing by a mask): none, unless the run says otherwise.
inline double part_found() {
  static const double part = std::min(1.0, std::max(0.0, atof(environment("BATCHFIT_VGPU_FOUND").c_str())));
  return part;
}

// Whether every token goes to the same experts, which is the worst that routing can do.
inline bool is_worst_routing() {
  static const bool worst = environment("BATCHFIT_VGPU_EXPERTS") == "worst";
  return worst;
}

// Inside an operator of which is known how much it keeps (nms), whatever masks hold; else negative.
inline thread_local int64_t kept = -1;
// Inside an operator that reads numbers to learn how large its result is, or whether its arguments are valid.
enum class Reads { Doubt, Zeros, Truths };
inline thread_local Reads reads = Reads::Doubt;

inline uint64_t draw() {
  static thread_local uint64_t state = 88172645463325252ull;  // xorshift64 (Marsaglia, 2003)
  state ^= state << 13, state ^= state >> 7, state ^= state << 17;
  return state;
}

// How many are found among `total`.
inline int64_t count_among(const std::string& name, int64_t total) {
  if (kept >= 0) return kept;
  const int64_t count = std::llround(part_found() * total);
  return name.find("unique") != std::string::npos && total ? std::max<int64_t>(count, 1) : count;
}

// An index among `n`. Ids that end a text lie at the ends of a vocabulary, and an untrained choice hardly ever falls on one of them: a
// sixteenth at each end is left out. A narrower choice would draw the same rows of a table more often than a card does.
inline int64_t one_of(int64_t n) { return n < 32 ? draw() % n : n / 16 + draw() % (n - n / 8); }

inline bool is_fillable(const Tensor& result) {
  return result.defined() && is_plain(result) && result.scalar_type() == c10::kLong && result.numel() && span(result) <= SMALL_INTEGERS;
}

// Fills what `unique` says beside what is different: which of `found` each is, or how often each came among the `total` that there are.
inline void fill_classes(const Tensor& result, int64_t found, int64_t total, bool is_which) {
  if (!is_fillable(result) || !result.is_contiguous() || found <= 0) return;
  int64_t *each = static_cast<int64_t*>(result.mutable_data_ptr()), n = result.numel();
  for (int64_t i = 0; i < n; i++) each[i] = is_which ? i * found / n : (i + 1) * total / found - i * total / found;
  mark_known(result, true);
}

// Fills a result's indices; `dim` is where they were looked for, among `n`.
inline void fill_choices(const Tensor& result, Choice choice, int64_t dim, int64_t n) {
  Tensor chosen = at::empty(result.sizes(), at::kLong);
  int64_t* index = chosen.data_ptr<int64_t>();
  const int64_t total = chosen.numel();
  // The looked-for dimension comes last while it is filled.
  Tensor target = plain_on_cpu(result);
  const int64_t row = choice == Choice::One || !result.dim() ? 1 : result.size(dim);
  if (choice != Choice::One && result.dim()) {
    target = target.movedim(dim, -1);
    chosen = chosen.view(target.sizes());
  }
  if (choice == Choice::One) {
    for (int64_t i = 0; i < total; i++) index[i] = one_of(n);
  } else if (choice == Choice::Order) {
    for (int64_t i = 0; i < total; i++) index[i] = i % row;
  } else if (n < 1024) {
    // Experts: all get the same number of tokens, also over steps of one token each.
    static std::atomic<uint64_t> turn{0};
    const uint64_t first = is_worst_routing() ? 0 : turn.fetch_add(total);
    for (int64_t i = 0; i < total; i++) index[i] = is_worst_routing() ? i % row : (first + i) % n;
  } else {
    for (int64_t i = 0; i < total; i += row) {
      const int64_t start = draw() % n, step = std::max<int64_t>(n / row, 1);
      for (int64_t j = 0; j < row; j++) index[i + j] = (start + j * step) % n;
    }
  }
  target.copy_(chosen);
  mark_known(result, true);
}

// Positions of what was found, spread evenly over a tensor of these sizes: a row for each, or a tensor for each dimension.
inline void fill_positions(const Tensor& result, at::IntArrayRef sizes) {
  Tensor found = plain_on_cpu(result);
  int64_t total = 1;
  for (const int64_t size : sizes) total *= size;
  const int64_t count = result.size(0);
  for (int64_t i = 0; i < count; i++) {
    int64_t rest = i * total / count;
    for (int64_t dim = (int64_t)sizes.size() - 1; dim >= 0; rest /= sizes[dim], dim--) found.select(0, i).select(0, dim).fill_(rest % sizes[dim]);
  }
  mark_known(result, true);
}

// Whether an operator asks if numbers are finite, and what the answer is: those that nobody computed are. `isinf(x)` arrives as
// `abs(x) == inf`, `isfinite(x)` as `x == x` and `abs(x) != inf`, and some write `x != x`. A single number is a norm or a loss: not negative.
inline std::optional<bool> answer_of_finite(const std::string& name, c10::ArrayRef<IValue> args) {
  if (name == "aten::isnan" || name == "aten::isposinf" || name == "aten::isneginf") return false;
  const bool is_below = name == "aten::lt" || name == "aten::le", is_above = name == "aten::gt" || name == "aten::ge";
  if ((is_below || is_above) && args.size() > 1 && args[0].isTensor() && args[0].toTensor().numel() == 1 && args[0].toTensor().is_floating_point() &&
      args[1].isScalar() && args[1].toScalar().toDouble() == 0)
    return is_above;
  const bool is_equal = name == "aten::eq", is_unequal = name == "aten::ne";
  if ((!is_equal && !is_unequal) || args.size() < 2 || !args[0].isTensor()) return {};
  const Tensor& asked = args[0].toTensor();
  if (args[1].isTensor() && asked.is_same(args[1].toTensor()) && asked.is_floating_point()) return is_equal;
  if (args[1].isDouble() && std::isinf(args[1].toDouble())) return is_unequal;
  return {};
}

// Whether unknown whole numbers are said to equal the one that they are compared with. Levels and labels are compared with one after another, and
// each is one of them: the first, the finest level or the background, which most of an untrained detector's boxes are of.
inline bool is_first_asked(c10::ArrayRef<IValue> args) {
  static thread_local std::pair<const void*, int64_t> first;
  if (args.size() < 2 || !args[0].isTensor() || !args[1].isInt() || !args[0].toTensor().dim() || !c10::isIntegralType(args[0].toTensor().scalar_type(), false)) return false;
  const std::pair<const void*, int64_t> asked = {args[0].toTensor().const_data_ptr(), args[1].toInt()};
  if (first.first != asked.first) first = asked;
  return first == asked;
}

// Fills a result of booleans with one answer.
inline void fill_answer(const Tensor& result, bool answer) {
  const size_t bytes = is_plain(result) ? span(result) : 0;
  if (!bytes || !batchfit_vgpu_is_device(address(result))) return;
  if (bytes > (answer ? SMALL_INTEGERS : SMALL_MASK)) return mark_unknown(result);
  // Pages that are given back read as zero and take nothing of the host.
  constexpr uint64_t PAGE = 4096;
  const uint64_t start = address(result), end = start + bytes;
  const uint64_t first = (start + PAGE - 1) / PAGE * PAGE, last = end / PAGE * PAGE;
  if (answer || first + 16 * PAGE > last) {
    memset(result.mutable_data_ptr(), answer, bytes);
  } else {
    memset(reinterpret_cast<void*>(start), 0, first - start);
    madvise(reinterpret_cast<void*>(first), last - first, MADV_DONTNEED);
    memset(reinterpret_cast<void*>(last), 0, end - last);
  }
  mark_known(result, true);
}

}  // namespace batchfit
