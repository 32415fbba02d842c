// A kernel of a device, wrapped: the real one runs first, so that it allocates what it allocates (its launches do nothing). Where its
// arguments are small and known the same operator then runs on the CPU, and its results are copied to where the real kernel's lie.
// Otherwise what it wrote is not known from then on.
#pragma once
#include "choices.h"
#include <c10/core/CachingDeviceAllocator.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <torch/version.h>

namespace batchfit {

// What the next small read of this thread from the device gives; operators in between read what lies there.
inline thread_local int64_t expected = -1;
inline void expect(int64_t count) {
  if (count != expected) batchfit_vgpu_expect(expected = count);
}

// Random numbers of the script's own generators are not touched: those of the device advance in the real kernel, those of the CPU stay.
inline const at::Generator& own_generator() {
  static const auto* generator = new at::Generator(at::detail::createCPUGenerator(20));
  return *generator;
}

// Libraries that are imported later register operators, too: whether some did since all were wrapped.
inline std::atomic<bool> is_stale{false};
// What python/hooks.py is told of operators: each that begins, until it has heard enough, and when more is allocated than ever, right after the
// operator that asked for it: what is at work then is at work at the peak.
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

// Wraps what is not wrapped yet; says how many (values.cpp).
int wrap_all();

class Kernel final : public c10::OperatorKernel {
  struct Argument {
    bool has_tensors, is_generator, is_written, is_overwritten, is_out;
  };
  // A tensor of a device that is an argument, or in a list that is one.
  struct Passed {
    Tensor tensor;
    const Argument* as;
  };
  // Arguments are still here when the kernel has taken them from the stack.
  struct Call {
    const c10::OperatorHandle& op;
    const DispatchKeySet keys;
    Stack* const stack;
    const Stack args;
    std::vector<Passed> passed;
  };

  const c10::KernelFunction real_;
  const std::string name_;
  std::vector<Argument> arguments_;
  std::vector<char> is_alias_, is_status_;
  const Choice choice_;
  int dim_argument_ = -1;
  size_t most_integers_, most_;
  bool is_count_of_kernel_, is_reduction_, is_computable_, has_generator_ = false;
  // Failures on the CPU since it last went well; after so many it is not tried again.
  std::atomic<int> failures_{0};
  static constexpr int MOST_FAILURES = 8;

  bool is(const char* name) const { return name_ == name; }

 public:
  Kernel(const c10::OperatorHandle& op, const c10::KernelFunction& real, DispatchKey on_host) : real_(real), name_(op.schema().operator_name().name), choice_(choice_of(op.schema())) {
    // What was in them does not matter.
    static const std::set<std::string> overwrite = {"aten::copy_",   "aten::fill_",        "aten::zero_",      "aten::uniform_",    "aten::normal_",   "aten::random_",
                                                    "aten::cauchy_", "aten::exponential_", "aten::bernoulli_", "aten::log_normal_", "aten::geometric_"};
    for (const auto& argument : op.schema().arguments()) {
      const std::string type = argument.type()->str();
      const bool is_generator = type.find("Generator") != std::string::npos;
      has_generator_ = has_generator_ || is_generator;
      if (argument.name() == "dim" && argument.type()->isSubtypeOf(*c10::OptionalType::create(c10::IntType::get()))) dim_argument_ = arguments_.size();
      arguments_.push_back({type.find("Tensor") != std::string::npos, is_generator, argument.alias_info() && argument.alias_info()->isWrite(),
                            argument.is_out() || (arguments_.empty() && overwrite.count(name_)), argument.is_out()});
    }
    for (const auto& result : op.schema().returns()) is_alias_.push_back(result.alias_info() != nullptr), is_status_.push_back(result.name() == "info");
    // Others are made of operators, the results of which they read.
    is_count_of_kernel_ = is("aten::nonzero") || is("aten::_coalesce") || name_.find("unique") != std::string::npos;
    is_reduction_ = is("aten::any") || is("aten::all");
    most_integers_ = is_reduction_ ? SMALL_MASK : decides(name_) ? SMALL_DECIDING : SMALL_INTEGERS;
    most_ = decides(name_) && !is("aten::fill_") ? SMALL_DECIDING : is("aten::bernoulli_") ? SMALL_INTEGERS : SMALL;
    // Without a generator to be given it would draw from the script's.
    is_computable_ = (has_generator_ || !op.hasTag(at::Tag::nondeterministic_seeded)) && op.hasComputedKernelForDispatchKey(on_host);
  }

  void operator()(const c10::OperatorHandle& op, DispatchKeySet keys, Stack* stack) {
    if (is_stale.load(std::memory_order_relaxed)) wrap_all();
    if (auto* const tell = tell_operator.load(std::memory_order_relaxed)) tell();
    const auto all = torch::jit::last(*stack, arguments_.size());
    Call call{op, keys, stack, Stack(all.begin(), all.end()), {}};
    if (is("aten::empty") || is("aten::empty_strided") || is("aten::resize_")) return empty(call);
    if (is("aten::_local_scalar_dense")) return read(call, call.args[0].toTensor());
    if (is("aten::copy_") && copy(call, call.args[0].toTensor(), call.args[1].toTensor())) return;
    for (size_t i = 0; i < all.size(); i++)
      for (const Tensor& tensor : arguments_[i].has_tensors ? tensors_of(call.args[i]) : Tensors())
        if (tensor.is_cuda()) call.passed.push_back({tensor, &arguments_[i]});
    can_compute(call) && !(choice_ == Choice::Counted && kept >= 0) ? compute(call) : leave_unknown(call);
  }

 private:
  void run(Call& call) const {
    {
      batchfit_vgpu_in_operator(1);
      const auto ended = c10::make_scope_exit([] { batchfit_vgpu_in_operator(-1); });
      real_.callBoxed(call.op, call.keys, call.stack);
    }
    look_at_peak();
  }

  // The kernel learns how many it finds (`count`) or keeps, and what it reads.
  void run_told(Call& call, int64_t count, int64_t keeps, bool is_zero) const {
    const auto ended = c10::make_scope_exit([before = expected, keeping = kept, reading = reads_zeros] { expect(before), kept = keeping, reads_zeros = reading; });
    expect(count), kept = keeps, reads_zeros = is_zero;
    run(call);
  }

  c10::ArrayRef<IValue> results(const Call& call) const { return torch::jit::last(*call.stack, is_alias_.size()); }

  // Does something with each tensor of a device that the kernel made.
  template <class Do>
  void each_result(const Call& call, Do what) const {
    for (size_t i = 0; i < is_alias_.size(); i++)
      for (const Tensor& tensor : is_alias_[i] ? Tensors() : tensors_of(results(call)[i]))
        if (tensor.is_cuda()) what(i, tensor);
  }

  // Runs what reads a tensor from the host: while it reads a loss or the like, which is no reason to doubt what a script does, that is known. A
  // loss falls slowly: a search that ended where two are equal (LBFGS) goes on.
  void read(Call& call, const Tensor& from) const {
    constexpr size_t DECISION = 64;  // larger ones are not asked about (src/memory/bytes.rs)
    const bool is_loss = is_plain(from) && !is_integral(from) && span(from) <= DECISION && !is_known(from);
    static std::atomic<int> losses{0};
    if (is_loss) batchfit_vgpu_mark(address(from), span(from), 1), assume("small numbers that are read, such as a loss");
    if (is_loss && from.numel() == 1) {
      c10::impl::ExcludeDispatchKeyGuard below(above_kernels());
      on_cpu(from).fill_(1e-3 / (1 + 1e-5 * losses++));
    }
    const auto ended = c10::make_scope_exit([&] { if (is_loss) mark_unknown(from); });
    run(call);
  }

  // Nobody reads what happens to lie there, so it may be known: what a permutation is scattered into is then known as a whole.
  void empty(Call& call) const {
    const bool is_resized = call.args[0].isTensor() && is_plain(call.args[0].toTensor());
    const uint64_t before = is_resized ? address(call.args[0].toTensor()) : 0;
    const size_t had = is_resized ? span(call.args[0].toTensor()) : 0;
    run(call);
    const Tensor& made = call.stack->back().toTensor();
    if (!is_plain(made) || !is_integral(made) || span(made) > SMALL || address(made) == before) return;
    if (had < span(made)) memset(static_cast<char*>(made.mutable_data_ptr()) + had, 0, span(made) - had);
    mark_known(made, true);
  }

  // Copies that the preload carries out and marks by itself; `false` where the kernel has to be followed.
  bool copy(Call& call, const Tensor& to, const Tensor& from) const {
    const bool is_within = to.is_cuda() && from.is_cuda();
    const bool is_same = to.layout() == c10::kStrided && from.layout() == c10::kStrided && to.scalar_type() == from.scalar_type() && to.sizes() == from.sizes() &&
                         to.is_contiguous() && from.is_contiguous();
    if (is_within && !(is_same && is_plain(to) && is_plain(from))) return false;
    is_within ? run(call) : read(call, from);
    if (std::unique_lock<std::mutex> lock; is_within && span(to) <= CARRIED && !is_known(from)) copies(lock)[address(to)] = address(from);
    if (is_same && is_integral(to) && to.nbytes() > CARRIED && to.nbytes() <= SMALL_INTEGERS && is_plain(to.is_cuda() ? to : from) && is_known(from)) {
      memcpy(to.mutable_data_ptr(), from.const_data_ptr(), to.nbytes());
      mark_known(to, false);
    }
    return true;
  }

  // What lies on the host is known.
  bool can_compute(const Call& call) const {
    // Numbers from 0 to 1 are compared with chances; weights begin with others.
    const bool is_chance = is("aten::uniform_") && call.args[1].toScalar().toDouble() == 0 && call.args[2].toScalar().toDouble() == 1;
    return is_computable_ && failures_.load(std::memory_order_relaxed) < MOST_FAILURES && std::all_of(call.passed.begin(), call.passed.end(), [&](const Passed& one) {
      return is_small(one.tensor, most_integers_, is_chance ? SMALL_INTEGERS : most_) && (one.as->is_overwritten || is_known(one.tensor));
    });
  }

  // An argument as the CPU's kernel takes it.
  IValue moved(const IValue& value, const Argument& argument) const {
    if (argument.is_generator) return own_generator();
    if (value.isDevice()) return c10::Device(c10::kCPU);
    if (value.isTensor() && value.toTensor().defined() && value.toTensor().is_cuda()) {
      // What is only written may have to grow, which bytes of others cannot. The CPU's histogram is of floats only.
      if (argument.is_out) return at::empty({0}, value.toTensor().options().device(c10::kCPU));
      return is("aten::histc") ? on_cpu(value.toTensor()).to(at::kDouble) : on_cpu(value.toTensor());
    }
    if (!argument.has_tensors || !value.isList()) return value;
    auto list = c10::impl::GenericList(value.toList().elementType());
    for (const IValue& element : value.toListRef()) list.push_back(moved(element, argument));
    return list;
  }

  // The results of the operator on the CPU; nothing where it cannot be computed there: half-precision that it does not have, buffers of another
  // shape, or an index out of range.
  std::optional<Stack> on_host(const Call& call) {
    c10::impl::ExcludeDispatchKeyGuard below(above_kernels());
    try {
      Stack stack, outs;
      for (size_t i = 0; i < call.args.size(); i++) stack.push_back(moved(call.args[i], arguments_[i]));
      // Several results that are arguments are returned as references into the stack, whose arguments are gone by then: they are read from here.
      for (size_t i = 0; i < call.args.size(); i++) if (arguments_[i].is_out) outs.push_back(stack[i]);
      call.op.callBoxed(&stack);
      failures_.store(0, std::memory_order_relaxed);
      return outs.size() > 1 ? outs : stack;
    } catch (const std::exception& error) {
      const std::string text = error.what(), line = text.substr(0, text.find('\n'));
      if (!failures_.fetch_add(1) && (line.find("out of range") != std::string::npos || line.find("out of bounds") != std::string::npos))
        say("problem\t" + name_ + ", as a device's assertion would say: " + line);
      return {};
    }
  }

  // Along which dimension an operator was told to look.
  std::optional<int64_t> dim(const Call& call) const {
    return dim_argument_ >= 0 && call.args[dim_argument_].isInt() ? std::optional(call.args[dim_argument_].toInt()) : std::nullopt;
  }

  // How many rows a result has whose size depends on values.
  int64_t count_of(const IValue& result, const Call& call) const {
    const Tensor& tensor = result.toTensor();
    return tensor.dim() ? tensor.size(dim(call).value_or(0)) : tensor.numel();
  }

  // Among how many.
  int64_t total_of(const Call& call) const {
    const Tensor& in = call.args[0].toTensor();
    return dim(call) && in.dim() ? in.size(*dim(call)) : in.numel();
  }

  void compute(Call& call) {
    const bool is_found_first = is_count_of_kernel_ || choice_ == Choice::Kept;
    std::optional<Stack> computed = is_found_first ? on_host(call) : draw_as_card(name_, call.args);
    if (is_found_first && !computed) return leave_unknown(call);
    if (has_generator_ && !computed) assume("random numbers of " + name_ + ", which a card draws in another order");
    // What is changed in place is as it was when the CPU's kernel begins, whatever copies the real one makes.
    std::vector<std::pair<Tensor, std::string>> before;
    for (const auto& [tensor, as] : call.passed)
      if (as->is_written && tensor.layout() == c10::kStrided && (computed || !as->is_overwritten)) before.emplace_back(tensor, std::string((const char*)tensor.const_data_ptr(), span(tensor)));
    const int64_t rows = is_found_first ? count_of((*computed)[0], call) : -1;
    run_told(call, is_count_of_kernel_ ? rows : -1, choice_ == Choice::Kept ? rows : kept, reads_zeros);
    for (const auto& [tensor, bytes] : before) memcpy(tensor.mutable_data_ptr(), bytes.data(), bytes.size());
    bool fits = true;
    each_result(call, [&](size_t, const Tensor& tensor) { fits = fits && is_small(tensor, SMALL_DECIDING, SMALL_DECIDING); });
    if (fits && !computed) computed = on_host(call);
    if (!fits || !computed) return lose(call);
    c10::impl::ExcludeDispatchKeyGuard below(above_kernels());
    for (const auto& [tensor, as] : call.passed) if (as->is_written) mark_known(tensor, false);
    for (size_t i = 0; i < is_alias_.size() && i < computed->size(); i++) {
      const Tensors to = tensors_of(results(call)[i]), from = tensors_of((*computed)[i]);
      if (to.empty() && !results(call)[i].isTensor() && !results(call)[i].isList()) call.stack->end()[i - is_alias_.size()] = (*computed)[i];  // a number or a boolean, such as `equal`
      for (size_t j = 0; j < to.size(); j++) {
        if (j >= from.size()) mark_unknown(to[j]);
        else if (to[j].is_cuda()) copy_result(to[j], from[j], !is_alias_[i]);
      }
    }
  }

  // Nothing that the kernel wrote is known, but that no gradient overflowed: that number stays zero.
  void lose(const Call& call) const {
    for (const auto& [tensor, as] : call.passed) if (as->is_written && (choice_ != Choice::Overflow || tensor.numel() != 1)) mark_unknown(tensor);
    each_result(call, [&](size_t, const Tensor& tensor) { forget(tensor); });
  }

  void leave_unknown(Call& call) {
    const auto answer = answer_of_finite(name_, call.args);
    const bool is_one_of = is("aten::eq") && is_first_asked(call.args), is_bound = is("aten::le") || is("aten::ge"), is_made_of_reads = choice_ == Choice::Counted && !is_count_of_kernel_;
    run_told(call, is_count_of_kernel_ ? count_unknown(call) : -1, choice_ == Choice::Kept ? call.args[0].toTensor().size(0) : kept, reads_zeros || is_made_of_reads);
    lose(call);
    static thread_local const void* ordered = nullptr;  // whether numbers are above others, or one that is no zero
    each_result(call, [&](size_t i, const Tensor& tensor) {
      if (answer && tensor.scalar_type() == c10::kBool) {
        fill_answer(tensor, *answer);
      } else if ((is_status_[i] || reads_zeros) && is_plain(tensor) && span(tensor) <= (is_status_[i] ? SMALL_INTEGERS : ZEROED)) {
        memset(tensor.mutable_data_ptr(), 0, span(tensor));
        mark_known(tensor, true);
        if (is_status_[i]) assume("success of " + name_);
      } else if ((is_reduction_ || is_one_of || is("aten::ne") || (is_bound && tensor.numel() == 1)) && is_guessed(tensor)) {
        // A guess, and said to be one when it is read: arguments are valid (`all`), a search goes on (`any`, but not whether least are above greatest),
        // one number keeps to a bound that is another, few are what is left out (`!=`).
        // Rows of which any is found are few, too, as outliers of int8.
        memset(tensor.mutable_data_ptr(), !is("aten::any") || (tensor.numel() == 1 && call.args[0].toTensor().const_data_ptr() != ordered), span(tensor));
      } else if (is("aten::eq") ? call.args[1].isScalar() : (is("aten::lt") || is("aten::gt")) && call.args[1].isTensor()) {
        ordered = tensor.const_data_ptr();
      }
    });
    if (is("aten::equal") && call.stack->back().toBool()) call.stack->back() = are_equal(call.args[0].toTensor(), call.args[1].toTensor());
    if (is_made_of_reads) assume("zeros where " + name_ + " reads sizes");
    if (answer) assume("finite numbers, single ones above zero (" + name_ + ")");
    if (choice_ == Choice::Overflow) assume("no overflow of gradients (" + name_ + ")");
    else if (choice_ != Choice::None) choose(call);
  }

  // How many are found among unknown things.
  int64_t count_unknown(const Call& call) const {
    const Tensor& in = call.args[0].toTensor();
    if (in.layout() == c10::kSparse) {
      const auto coalesced = coalesced_indices(in);
      if (!coalesced) assume("different indices (" + name_ + ")");
      return coalesced ? coalesced->size(1) : in._nnz();
    }
    if (kept < 0) assume("how many " + name_ + " finds", "BATCHFIT_VGPU_FOUND=1");
    const int64_t guessed = is_guessed(in) && kept < 0 ? std::count((const char*)in.const_data_ptr(), (const char*)in.const_data_ptr() + span(in), 1) : 0;
    return std::max(guessed, count_among(name_, total_of(call)));
  }

  // Coalescing depends on indices only: gradients of embeddings have known indices and unknown values.
  static std::optional<Tensor> coalesced_indices(const Tensor& tensor) {
    const Tensor indices = sparse(tensor)->indices();
    if (!is_small(indices, SMALL_INTEGERS) || !is_known(indices)) return {};
    c10::impl::ExcludeDispatchKeyGuard below(above_kernels());
    return at::_sparse_coo_tensor_unsafe(on_cpu(indices), at::ones({tensor._nnz()}, at::kChar), tensor.sizes().slice(0, sparse(tensor)->sparse_dim())).coalesce()._indices();
  }

  void choose(const Call& call) const {
    const auto given = results(call);
    const bool is_pair = call.op.schema().returns().back().name() == "indices";
    if (!given[is_pair].isTensor()) return;
    const Tensor &result = given[is_pair].toTensor(), &in = call.args[0].toTensor();
    c10::impl::ExcludeDispatchKeyGuard below(above_kernels());
    if (in.layout() == c10::kSparse) {
      const auto coalesced = coalesced_indices(in);
      return coalesced ? copy_result(sparse(result)->indices(), *coalesced, true) : mark_unknown(sparse(result)->indices());
    }
    for (size_t i = 1; i < given.size() && choice_ == Choice::Counted; i++) fill_classes(given[i].toTensor(), count_of(given[0], call), total_of(call), i == 1);
    if (!is_fillable(result) || choice_ == Choice::Counted) return;
    const bool is_whole = choice_ == Choice::One && dim_argument_ >= 0 && call.args[dim_argument_].isNone();
    const int64_t along = dim(call).value_or(choice_ == Choice::Kept ? 0 : -1), n = is_whole ? in.numel() : in.dim() ? in.size(along) : 1;
    if (n <= 0) return;
    fill_choices(result, choice_ == Choice::Kept ? Choice::Order : choice_, along, n);
    assume("choices of " + name_);
  }
};

}  // namespace batchfit
