// A kernel of a device, wrapped: the real one runs first, so that it allocates what it allocates (its launches do nothing). Where its
// arguments are small and known the same operator then runs on the CPU, and its results are copied to where the real kernel's lie.
// Otherwise what it wrote is not known from then on.
#pragma once
#include "draws.h"
#include "watch.h"

namespace batchfit {

// Does something when a block ends, also by an exception.
template <class End>
struct Finally {
  End end;
  ~Finally() { end(); }
};

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
// Wraps what is not wrapped yet; says how many (values.cpp).
int wrap_all();

class Kernel final : public c10::OperatorKernel {
 public:
  Kernel(const c10::OperatorHandle& op, const c10::KernelFunction& real, DispatchKey on_host) : real_(real), name_(op.schema().operator_name().name) {
    // What was in them does not matter.
    static const std::set<std::string> overwrite = {"aten::copy_",   "aten::fill_",        "aten::zero_",      "aten::uniform_",    "aten::normal_",   "aten::random_",
                                                    "aten::cauchy_", "aten::exponential_", "aten::bernoulli_", "aten::log_normal_", "aten::geometric_"};
    const auto& schema = op.schema();
    for (const auto& argument : schema.arguments()) {
      const std::string type = argument.type()->str();
      const bool is_written = argument.alias_info() && argument.alias_info()->isWrite();
      const bool is_overwritten = argument.is_out() || (arguments_.empty() && overwrite.count(name_));
      has_generator_ = has_generator_ || type.find("Generator") != std::string::npos;
      if (argument.name() == "dim" && argument.type()->isSubtypeOf(*c10::OptionalType::create(c10::IntType::get()))) dim_argument_ = arguments_.size();
      arguments_.push_back({type.find("Tensor") != std::string::npos, type.find("Generator") != std::string::npos, is_written, is_overwritten, argument.is_out()});
    }
    for (const auto& result : schema.returns()) {
      is_alias_.push_back(result.alias_info() != nullptr);
      is_status_.push_back(result.name() == "info");
    }
    choice_ = choice_of(name_);
    // Others are made of operators, the results of which they read.
    is_count_of_kernel_ = name_ == "aten::nonzero" || name_ == "aten::_coalesce" || name_.find("unique") != std::string::npos;
    is_copy_ = name_ == "aten::copy_";
    is_sum_ = name_ == "aten::add" || name_ == "aten::add_";
    is_empty_ = name_ == "aten::empty" || name_ == "aten::empty_strided" || name_ == "aten::resize_";
    is_read_ = name_ == "aten::_local_scalar_dense";
    is_reduction_ = name_ == "aten::any" || name_ == "aten::all";
    most_integers_ = is_reduction_ ? SMALL_MASK : decides(name_) ? SMALL_DECIDING : SMALL_INTEGERS;
    most_ = decides(name_) && name_ != "aten::fill_" ? SMALL_DECIDING : name_ == "aten::bernoulli_" ? SMALL_INTEGERS : SMALL;
    // Without a generator to be given it would draw from the script's.
    const bool draws = op.hasTag(at::Tag::nondeterministic_seeded) && !has_generator_;
    is_computable_ = !draws && op.hasComputedKernelForDispatchKey(on_host);
  }

  void operator()(const c10::OperatorHandle& op, DispatchKeySet keys, Stack* stack) {
    if (is_stale.load(std::memory_order_relaxed)) wrap_all();
    look_at_operator();
    const auto args = torch::jit::last(*stack, arguments_.size());
    if (is_empty_) return empty(op, keys, stack, args[0].isTensor() ? args[0].toTensor() : Tensor());
    if (is_read_) return read(op, keys, stack, args[0].toTensor());
    if (is_copy_ && copy(op, keys, stack, args[0].toTensor(), args[1].toTensor())) return;
    std::vector<Passed> passed = on_device(args);
    const bool is_forced = choice_ == Choice::Counted && kept >= 0;
    if (!is_forced && can_compute(passed, args)) {
      compute(op, keys, stack, passed);
    } else if (is_guess(passed)) {
      compute(op, keys, stack, passed);
      for (const IValue& result : results(stack))
        for (const Tensor& tensor : tensors_of(result)) mark_unknown(tensor);
    } else {
      leave_unknown(op, keys, stack, std::move(passed));
    }
  }

 private:
  struct Argument {
    bool has_tensors, is_generator, is_written, is_overwritten, is_out;
  };
  // A tensor of a device that is an argument, or in a list that is one.
  struct Passed {
    Tensor tensor;
    const Argument* as;
  };

  const c10::KernelFunction real_;
  const std::string name_;
  std::vector<Argument> arguments_;
  std::vector<char> is_alias_, is_status_;
  Choice choice_;
  int dim_argument_ = -1;
  size_t most_integers_, most_;
  bool is_copy_ = false, is_empty_ = false, is_sum_, is_count_of_kernel_, is_read_, is_reduction_, is_computable_, has_generator_ = false;
  // Failures on the CPU since it last went well; after so many it is not tried again.
  std::atomic<int> failures_{0};
  static constexpr int MOST_FAILURES = 8;

  void run_real(const c10::OperatorHandle& op, DispatchKeySet keys, Stack* stack) const {
    {
      batchfit_vgpu_in_operator(1);
      Finally ended{[] { batchfit_vgpu_in_operator(-1); }};
      real_.callBoxed(op, keys, stack);
    }
    look_at_peak();
  }

  // Runs what reads a tensor from the host: while it reads a loss or the like, which is no reason to doubt what a script does, that is known.
  void read(const c10::OperatorHandle& op, DispatchKeySet keys, Stack* stack, const Tensor from) const {
    constexpr size_t DECISION = 64;  // larger ones are not asked about (src/memory/bytes.rs)
    const bool is_loss = is_plain(from) && !is_integral(from) && span(from) <= DECISION && !is_known(from);
    if (is_loss) batchfit_vgpu_mark(address(from), span(from), 1), assume("small numbers that are read, such as a loss");
    Finally ended{[&] { if (is_loss) mark_unknown(from); }};
    run_real(op, keys, stack);
  }

  // Nobody reads what happens to lie there, so it may be known: what a permutation is scattered into is then known as a whole.
  void empty(const c10::OperatorHandle& op, DispatchKeySet keys, Stack* stack, const Tensor resized) const {
    const uint64_t before = resized.defined() && is_plain(resized) ? address(resized) : 0;
    const size_t kept_bytes = before ? span(resized) : 0;
    run_real(op, keys, stack);
    const Tensor& made = stack->back().toTensor();
    if (resized.defined() && made.is_cuda() && is_plain(made) && address(made) == before) return;
    if (!made.is_cuda() || !is_integral(made) || !is_plain(made) || !span(made) || span(made) > SMALL || !batchfit_vgpu_is_device(address(made))) return;
    if (kept_bytes < span(made)) memset(static_cast<char*>(made.mutable_data_ptr()) + kept_bytes, 0, span(made) - kept_bytes);
    mark_known(made, true);
  }

  c10::ArrayRef<IValue> results(const Stack* stack) const { return torch::jit::last(*stack, is_alias_.size()); }

  std::vector<Passed> on_device(c10::ArrayRef<IValue> args) const {
    std::vector<Passed> passed;
    passed.reserve(args.size());
    for (size_t i = 0; i < args.size(); i++)
      for (const Tensor& tensor : arguments_[i].has_tensors ? tensors_of(args[i]) : Tensors())
        if (tensor.is_cuda()) passed.push_back({tensor, &arguments_[i]});
    return passed;
  }

  // What lies on the host is known.
  bool can_compute(const std::vector<Passed>& passed, c10::ArrayRef<IValue> args) const {
    // Numbers from 0 to 1 are compared with chances; weights begin with others.
    const size_t most = name_ == "aten::uniform_" && args[1].toScalar().toDouble() == 0 && args[2].toScalar().toDouble() == 1 ? SMALL_INTEGERS : most_;
    if (!is_computable_ || failures_.load(std::memory_order_relaxed) >= MOST_FAILURES) return false;
    for (const auto& [tensor, as] : passed)
      if (!is_small(tensor, most_integers_, most) || !(as->is_overwritten || is_known(tensor))) return false;
    return true;
  }

  // Logic with booleans that are not known goes on with what was guessed (`all` and `any`), and stays not known.
  bool is_guess(const std::vector<Passed>& passed) const {
    if (!is_computable_ || is_reduction_ || choice_ != Choice::None) return false;
    for (const auto& [tensor, as] : passed)
      if (tensor.scalar_type() != c10::kBool || tensor.nbytes() > ZEROED || !is_small(tensor, ZEROED)) return false;
    return !passed.empty();
  }

  // What the kernel wrote of it. A sum of sparse tensors has the indices of both, which an operator inside has followed.
  Tensor written(const Tensor& tensor) const { return is_sum_ && tensor.layout() == c10::kSparse ? sparse(tensor)->values() : tensor; }

  // Copies that the preload carries out and marks by itself; `false` where the kernel has to be followed.
  bool copy(const c10::OperatorHandle& op, DispatchKeySet keys, Stack* stack, const Tensor& to_, const Tensor& from_) const {
    const Tensor to = to_, from = from_;
    const bool is_same = to.layout() == c10::kStrided && from.layout() == c10::kStrided && are_same(to, from);
    if (to.is_cuda() && from.is_cuda()) {
      if (!is_same || !is_plain(to) || !is_plain(from) || from.nbytes() > (is_integral(from) ? SMALL_INTEGERS : CARRIED) || !is_known(from)) return false;
      run_real(op, keys, stack);
      mark_known(to, false);
      if (to.numel() && memcmp(to.const_data_ptr(), from.const_data_ptr(), to.nbytes())) memcpy(to.mutable_data_ptr(), from.const_data_ptr(), to.nbytes());
      return true;
    }
    read(op, keys, stack, from);
    const size_t bytes = is_same ? to.nbytes() : 0;
    const Tensor& there = to.is_cuda() ? to : from;
    if (bytes > CARRIED && bytes <= SMALL_INTEGERS && is_integral(to) && is_plain(there) && is_known(from) && batchfit_vgpu_is_device(address(there))) {
      memcpy(to.mutable_data_ptr(), from.const_data_ptr(), bytes);
      mark_known(to, false);
    }
    return true;
  }

  // An argument as the CPU's kernel takes it.
  IValue moved(const IValue& value, const Argument& argument) const {
    if (argument.is_generator) return own_generator();
    if (value.isDevice() && value.toDevice().is_cuda()) return c10::Device(c10::kCPU);
    if (!argument.has_tensors) return value;
    if (value.isTensor()) {
      const Tensor& tensor = value.toTensor();
      if (!tensor.defined() || !tensor.is_cuda()) return value;
      // What is only written may have to grow, which bytes of others cannot.
      if (argument.is_out) return at::empty({0}, tensor.options().device(c10::kCPU));
      // The CPU's histogram is of floats only.
      return name_ == "aten::histc" ? on_cpu(tensor).to(at::kDouble) : on_cpu(tensor);
    }
    if (!value.isList()) return value;
    auto list = c10::impl::GenericList(value.toList().elementType());
    for (const IValue& element : value.toListRef()) list.push_back(moved(element, argument));
    return list;
  }

  // The results of the operator on the CPU.
  Stack on_host(const c10::OperatorHandle& op, const Stack& args) const {
    c10::impl::ExcludeDispatchKeyGuard below(above_kernels());
    Stack stack;
    stack.reserve(args.size());
    for (size_t i = 0; i < args.size(); i++) stack.push_back(moved(args[i], arguments_[i]));
    // Several results that are arguments are returned as references into the stack, whose arguments are gone by then: they are read from here.
    const Stack held = stack;
    op.callBoxed(&stack);
    Stack outs;
    for (size_t i = 0; i < held.size(); i++) if (arguments_[i].is_out) outs.push_back(held[i]);
    return outs.size() > 1 ? outs : stack;
  }

  // How many rows, or bytes of a sparse tensor's indices, a result has whose size depends on values.
  int64_t count_of(const IValue& result, const Stack& args) const {
    const Tensor& tensor = result.toTensor();
    if (tensor.layout() == c10::kSparse) return tensor._nnz();
    const bool along = dim_argument_ >= 0 && args[dim_argument_].isInt() && tensor.dim();
    return tensor.dim() ? tensor.size(along ? args[dim_argument_].toInt() : 0) : tensor.numel();
  }

  void compute(const c10::OperatorHandle& op, DispatchKeySet keys, Stack* stack, const std::vector<Passed>& passed) {
    const auto all = torch::jit::last(*stack, arguments_.size());
    const Stack args(all.begin(), all.end());
    std::optional<Stack> computed;
    if (is_count_of_kernel_ || choice_ == Choice::Kept) {
      try {
        computed = on_host(op, args);
      } catch (const std::exception& error) {
        failed(error);
        return leave_unknown(op, keys, stack, passed);
      }
    }
    // What is changed in place is as it was when the CPU's kernel begins, whatever copies the real one makes.
    std::vector<std::pair<Tensor, std::string>> before;
    for (const auto& [tensor, as] : passed)
      if (as->is_written && !as->is_overwritten && tensor.layout() == c10::kStrided)
        before.emplace_back(tensor, std::string((const char*)tensor.const_data_ptr(), span(tensor)));
    const int64_t rows = computed ? count_of((*computed)[0], args) : -1;
    const auto drawn = Draw::of(name_, args);
    if (has_generator_ && !drawn) assume("random numbers of " + name_ + ", which a card draws in another order");
    run_told(op, keys, stack, is_count_of_kernel_ ? rows : -1, choice_ == Choice::Kept ? rows : kept, reads);
    for (const auto& [tensor, bytes] : before) memcpy(tensor.mutable_data_ptr(), bytes.data(), bytes.size());
    const auto given = results(stack);
    bool fits = true;
    for (const IValue& result : given)
      for (const Tensor& tensor : tensors_of(result)) fits = fits && (!tensor.is_cuda() || is_small(tensor, SMALL_DECIDING, SMALL_DECIDING));
    try {
      if (fits && !computed) computed = drawn ? Stack{drawn->fill()} : on_host(op, args);
    } catch (const std::exception& error) {
      failed(error);
      fits = false;
    }
    if (!fits) {
      for (const auto& [tensor, as] : passed) if (as->is_written) mark_unknown(written(tensor));
      for (size_t i = 0; i < given.size(); i++)
        for (const Tensor& tensor : is_alias_[i] ? Tensors() : tensors_of(given[i])) forget(written(tensor));
      return;
    }
    failures_.store(0, std::memory_order_relaxed);
    c10::impl::ExcludeDispatchKeyGuard below(above_kernels());
    for (const auto& [tensor, as] : passed) if (as->is_written) mark_known(tensor, false);
    for (size_t i = 0; i < given.size() && i < computed->size(); i++) {
      const Tensors to = tensors_of(given[i]), from = tensors_of((*computed)[i]);
      if (to.empty() && !given[i].isTensor() && !given[i].isList()) {
        (*stack)[stack->size() - given.size() + i] = (*computed)[i];  // a number or a boolean, such as `equal`
        continue;
      }
      for (size_t j = 0; j < to.size(); j++) {
        if (j >= from.size()) mark_unknown(to[j]);
        else if (to[j].is_cuda()) copy_result(to[j], from[j], !is_alias_[i]);
      }
    }
  }

  // The operator cannot be computed on the CPU: half-precision that it does not have, buffers of another shape, or an index out of range.
  void failed(const std::exception& error) {
    const int failures = failures_.fetch_add(1) + 1;
    const std::string text = error.what();
    const std::string line = text.substr(0, text.find('\n'));
    if (failures == 1 && (line.find("out of range") != std::string::npos || line.find("out of bounds") != std::string::npos))
      say("problem\t" + name_ + ", as a device's assertion would say: " + line);
  }

  // Runs the real kernel, which learns how many it finds (`count`) or keeps, and what it reads, of the variables above.
  void run_told(const c10::OperatorHandle& op, DispatchKeySet keys, Stack* stack, int64_t count, int64_t keeps, Reads as) const {
    Finally ended{[before = expected, keeping = kept, reading = reads] { expect(before), kept = keeping, reads = reading; }};
    expect(count), kept = keeps, reads = as;
    run_real(op, keys, stack);
  }

  void leave_unknown(const c10::OperatorHandle& op, DispatchKeySet keys, Stack* stack, std::vector<Passed> passed) {
    // The others are held by nobody here while the kernel runs.
    std::erase_if(passed, [](const Passed& one) { return !one.as->is_written; });
    const auto all = torch::jit::last(*stack, arguments_.size());
    const auto answer = answer_of_finite(name_, all);
    const bool is_one_of = name_ == "aten::eq" && is_first_asked(all);
    Stack args;
    if (choice_ != Choice::None) args.assign(all.begin(), all.end());
    const bool is_made_of_reads = choice_ == Choice::Counted && !is_count_of_kernel_;
    run_told(op, keys, stack, is_count_of_kernel_ ? count_unknown(args) : -1, choice_ == Choice::Kept ? args[0].toTensor().size(0) : kept,
             is_made_of_reads ? Reads::Zeros : name_ == "aten::normal" ? Reads::Truths : reads);
    if (is_made_of_reads) assume("zeros where " + name_ + " reads sizes");
    // The number that says whether gradients overflowed stays zero.
    for (const auto& [tensor, as] : passed)
      if (choice_ != Choice::Overflow || tensor.numel() != 1) mark_unknown(written(tensor));
    if (choice_ == Choice::Overflow) assume("no overflow of gradients (" + name_ + ")");
    const auto given = results(stack);
    for (size_t i = 0; i < given.size(); i++) {
      for (const Tensor& tensor : is_alias_[i] ? Tensors() : tensors_of(given[i])) {
        if (!tensor.is_cuda()) continue;
        forget(written(tensor));
        if (answer && tensor.scalar_type() == c10::kBool) {
          fill_answer(tensor, *answer);
        } else if ((is_status_[i] || reads != Reads::Doubt) && is_plain(tensor) && span(tensor) <= ZEROED) {
          if (reads == Reads::Truths && tensor.scalar_type() == c10::kBool) memset(tensor.mutable_data_ptr(), 1, span(tensor));
          mark_known(tensor, true);
          if (is_status_[i]) assume("success of " + name_);
        } else if ((is_reduction_ || is_one_of || name_ == "aten::ne") && is_guessed(tensor)) {
          // A guess, and said to be one when it is read: arguments are valid (`all`), a search goes on (`any`), few are what is left out (`!=`).
          // Rows of which any is found are few, too, as outliers of int8.
          memset(tensor.mutable_data_ptr(), name_ != "aten::any" || tensor.numel() == 1, span(tensor));
        }
      }
    }
    if (answer) assume("finite numbers, single ones above zero (" + name_ + ")");
    if (choice_ != Choice::None) choose(args, given);
  }

  // How many are found among unknown things.
  int64_t count_unknown(const Stack& args) const {
    const Tensor& in = args[0].toTensor();
    if (in.layout() == c10::kSparse) {
      const auto coalesced = coalesced_indices(in);
      if (!coalesced) assume("different indices (" + name_ + ")");
      return coalesced ? coalesced->size(1) : in._nnz();
    }
    if (kept < 0) assume("how many " + name_ + " finds; with BATCHFIT_VGPU_FOUND=1 it finds all, the other bound");
    const int64_t guessed = is_guessed(in) && kept < 0 ? std::count((const char*)in.const_data_ptr(), (const char*)in.const_data_ptr() + span(in), 1) : 0;
    return std::max(guessed, count_among(name_, total_of(args)));
  }

  // Among how many.
  int64_t total_of(const Stack& args) const {
    const Tensor& in = args[0].toTensor();
    const bool along = dim_argument_ >= 0 && args[dim_argument_].isInt() && in.dim();
    return along ? in.size(args[dim_argument_].toInt()) : in.numel();
  }

  // Coalescing depends on indices only: gradients of embeddings have known indices and unknown values.
  static std::optional<Tensor> coalesced_indices(const Tensor& tensor) {
    const Tensor indices = sparse(tensor)->indices();
    if (!is_small(indices, SMALL_INTEGERS) || !is_known(indices)) return {};
    c10::impl::ExcludeDispatchKeyGuard below(above_kernels());
    const auto sizes = tensor.sizes().slice(0, sparse(tensor)->sparse_dim());
    const Tensor ones = at::ones({tensor._nnz()}, at::kChar);
    return at::_sparse_coo_tensor_unsafe(plain_on_cpu(indices), ones, sizes).coalesce()._indices();
  }

  void choose(const Stack& args, c10::ArrayRef<IValue> given) const {
    const size_t which = choice_ == Choice::Kept || choice_ == Choice::Counted || name_ == "aten::multinomial" || name_.rfind("aten::arg", 0) == 0 ? 0 : 1;
    if (choice_ == Choice::Overflow || which >= given.size() || !given[which].isTensor()) return;
    const Tensor& result = given[which].toTensor();
    const Tensor& in = args[0].toTensor();
    if (in.layout() == c10::kSparse) {
      if (const auto coalesced = coalesced_indices(in)) copy_result(sparse(result)->indices(), *coalesced, true);
      return;
    }
    c10::impl::ExcludeDispatchKeyGuard below(above_kernels());
    for (size_t i = 1; i < given.size() && choice_ == Choice::Counted; i++) fill_classes(given[i].toTensor(), count_of(given[0], args), total_of(args), i == 1);
    if (!is_fillable(result)) return;
    if (name_ == "aten::nonzero") fill_positions(result, in.sizes());
    if (choice_ == Choice::Counted) return;
    const bool is_whole = choice_ == Choice::One && dim_argument_ >= 0 && args[dim_argument_].isNone();
    const int64_t dim = dim_argument_ >= 0 && args[dim_argument_].isInt() ? args[dim_argument_].toInt() : choice_ == Choice::Kept ? 0 : -1;
    const int64_t n = is_whole ? in.numel() : in.dim() ? in.size(dim) : 1;
    if (n <= 0 || !result.numel()) return;
    fill_choices(result, choice_ == Choice::Kept ? Choice::Order : choice_, dim, n);
    assume("choices of " + name_);
  }
};

}  // namespace batchfit
