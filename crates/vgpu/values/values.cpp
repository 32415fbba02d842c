// Values of small tensors on a virtual GPU. Scripts and libraries decide by numbers: how long sentences are, whether a loss is finite, which experts a token
// goes to. Kernels do not run there, so this object wraps every kernel that was registered for CUDA with PyTorch's dispatcher. It lies below autograd,
// autocast and compilation, which do not notice it. It is built against the headers of one PyTorch, since the dispatcher has no C interface, and loaded by
// python/values.py.
#include "values.h"
#include <c10/core/CachingDeviceAllocator.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <torch/version.h>

namespace batchfit {

// How many an operator finds that is at work in this thread, as is known; else negative. The next small read from the device gives it.
static thread_local int64_t expected = -1;
static thread_local bool reads_zeros = false;  // inside an operator that `READS`

// Libraries that are imported later register operators, too: whether some did since all were wrapped.
static std::atomic<bool> is_stale{false};
// What python/hooks.py is told of operators: each that begins, until it has heard enough, and when more is allocated than ever, right after the
// operator that asked for it: what is at work then is at work at the peak.
static std::atomic<void (*)()> tell_operator{nullptr};
static std::atomic<void (*)(int)> tell_peak{nullptr};

static void look_at_peak() {
#if TORCH_VERSION_MAJOR > 2 || TORCH_VERSION_MINOR >= 9  // from where on allocators say through the core library what they hold
  static std::atomic<int64_t> most[16];  // `MOST_DEVICES` in src/memory/mod.rs
  static auto* const allocator = dynamic_cast<c10::DeviceAllocator*>(c10::GetAllocator(c10::DeviceType::CUDA));
  auto* const tell = tell_peak.load(std::memory_order_relaxed);
  if (!tell || !allocator || !allocator->initialized()) return;
  const auto device = c10::impl::VirtualGuardImpl(c10::DeviceType::CUDA).getDevice().index();
  const int64_t peak = allocator->getDeviceStats(device).allocated_bytes[0].peak;  // of both pools
  if (peak > most[device].load(std::memory_order_relaxed)) most[device].store(peak), tell(device);
#endif
}

// A kernel of a device, wrapped: the real one runs first, so that it allocates what it allocates (its launches do nothing). Where its
// arguments are small and known the same operator then runs on the CPU, and its results are copied to where the real kernel's lie.
// Otherwise what it wrote is not known from then on.
struct Kernel final : c10::OperatorKernel {
  // Arguments are still here when the kernel has taken them from the stack.
  struct Call {
    const c10::OperatorHandle& op;
    const DispatchKeySet keys;
    Stack* const stack;
    const c10::impl::LocalDispatchKeySet above;
    const Stack args;
  };

  const c10::KernelFunction real_;
  const c10::FunctionSchema schema_;
  const std::string name_;
  Facts facts_;
  int generator_ = -1;  // which argument it is
  bool is_computable_;
  std::atomic<int> failures_{0};  // on the CPU since it last went well

  bool is(const char* name) const { return name_ == name; }
  bool has(unsigned what) const { return facts_.what & what; }
  bool is_overwritten(const c10::Argument& argument) const { return argument.is_out() || (has(OVERWRITES) && is_written(argument)); }
  // Wraps what is not wrapped yet; says how many are.
  static int wrap_all();
  static bool is_written(const c10::Argument& argument) { return argument.alias_info() && argument.alias_info()->isWrite(); }

  Kernel(const c10::OperatorHandle& op, const c10::KernelFunction& real, DispatchKey key)
      : real_(real), schema_(op.schema()), name_(schema_.name()), facts_(facts_of(name_.substr(name_.find("::") + 2))) {
    const auto& gives = schema_.returns();
    for (size_t i = 0; i < schema_.arguments().size(); i++)
      if (schema_.arguments()[i].type()->str().find("Generator") != std::string::npos) generator_ = i;
    if (!has(SEVERAL | ORDER) && gives.size() == 2 && gives[1].name() == "indices") facts_.what |= ONE;  // `max`, `median`, `mode` along a dimension
    // Without a generator to be given it would draw from the script's. Values of sparse tensors are not computed.
    is_computable_ = (generator_ >= 0 || !op.hasTag(at::Tag::nondeterministic_seeded)) && key == DispatchKey::CUDA && op.hasComputedKernelForDispatchKey(DispatchKey::CPU);
  }

  void operator()(const c10::OperatorHandle& op, DispatchKeySet keys, Stack* stack) {
    if (is_stale.load(std::memory_order_relaxed)) wrap_all();
    if (auto* const tell = tell_operator.load(std::memory_order_relaxed)) tell();
    Call call{op, keys, stack, c10::impl::tls_local_dispatch_key_set(), torch::jit::last(*stack, schema_.arguments().size()).vec()};
    // The CPU's operators run below everything that a program can put above kernels.
    static const DispatchKeySet modes({DispatchKey::Python, DispatchKey::PythonTLSSnapshot, DispatchKey::Functionalize,
                                       DispatchKey::FuncTorchDynamicLayerFrontMode, DispatchKey::FuncTorchDynamicLayerBackMode});
    const c10::impl::ExcludeDispatchKeyGuard below(c10::autograd_dispatch_keyset_with_ADInplaceOrView | c10::autocast_dispatch_keyset | modes);
    if (is("aten::empty") || is("aten::empty_strided") || is("aten::resize_")) return empty(call);
    if (is("aten::_local_scalar_dense")) return read(call, call.args[0].toTensor());
    if (is("aten::copy_") && !(call.args[0].toTensor().is_cuda() && call.args[1].toTensor().is_cuda())) return copy(call, call.args[0].toTensor(), call.args[1].toTensor());
    can_compute(call) ? compute(call) : leave_unknown(call);
  }

  // Runs the real kernel. One that asks the device how many it finds is told.
  void run(Call& call, int64_t found = -1) const {
    const c10::impl::ForceDispatchKeyGuard as_called(call.above);
    const auto ended = c10::make_scope_exit([before = expected, found, was_read = reads_zeros] {
      batchfit_vgpu_in_operator(-1);
      if (found >= 0) batchfit_vgpu_expect(expected = before);
      reads_zeros = was_read;
    });
    batchfit_vgpu_in_operator(1);
    reads_zeros = reads_zeros || has(READS);
    if (found >= 0) batchfit_vgpu_expect(expected = found);
    real_.callBoxed(call.op, call.keys, call.stack);
    look_at_peak();
  }

  c10::ArrayRef<IValue> results(const Call& call) const { return torch::jit::last(*call.stack, schema_.returns().size()); }

  // The tensors of a device among arguments or results, each with what the schema says of it.
  static auto on_device(const std::vector<c10::Argument>& as, c10::ArrayRef<IValue> values) {
    std::vector<std::pair<const c10::Argument&, Tensor>> found;
    for (size_t i = 0; i < as.size(); i++)
      for (const Tensor& tensor : tensors_of(values[i]))
        if (tensor.is_cuda()) found.emplace_back(as[i], tensor);
    return found;
  }

  // Runs what reads a tensor from the host: while it reads a loss or the like, which is no reason to doubt what a script does, that is known. A
  // loss falls slowly: a search that ended where two are equal (LBFGS) goes on.
  void read(Call& call, const Tensor& from) const {
    static std::atomic<int> losses{0};
    const bool is_loss = is_plain(from) && !is_integral(from) && span(from) <= DECISION && !is_known(from);
    if (!is_loss) return run(call);
    batchfit_vgpu_mark(address(from), span(from), 1);
    const auto ended = c10::make_scope_exit([&] { mark_unknown(from); });
    assume("small numbers that are read, such as a loss");
    if (from.numel() == 1) on_cpu(from).fill_(1e-3 / (1 + 1e-5 * losses++));
    run(call);
  }

  // Nobody reads what happens to lie there, so it may be known: what a permutation is scattered into is then known as a whole.
  void empty(Call& call) const {
    const bool is_resized = call.args[0].isTensor() && is_plain(call.args[0].toTensor());
    const size_t had = !is_resized ? 0 : is_known(call.args[0].toTensor()) ? span(call.args[0].toTensor()) : SIZE_MAX;
    run(call);
    const Tensor& made = call.stack->back().toTensor();
    if (!is_small(made, SMALL, 0) || span(made) <= had) return;
    memset(static_cast<char*>(made.mutable_data_ptr()) + had, 0, span(made) - had);
    mark_known(made, true);
  }

  // Between host and device the preload copies and marks by itself, but not so many whole numbers.
  void copy(Call& call, const Tensor& to, const Tensor& from) const {
    read(call, from);
    const bool is_same = to.layout() == from.layout() && to.scalar_type() == from.scalar_type() && to.sizes() == from.sizes();
    if (!is_same || !is_small(to.is_cuda() ? to : from, SMALL_INTEGERS, 0) || !to.is_contiguous() || !from.is_contiguous() || !is_known(from)) return;
    memcpy(to.mutable_data_ptr(), from.const_data_ptr(), to.nbytes());
    mark_known(to, false);
  }

  // What lies on the host is known. Inside an operator of which is known how much it finds, whatever its masks hold, nothing is counted.
  bool can_compute(const Call& call) const {
    if (!is_computable_ || failures_.load(std::memory_order_relaxed) >= 8 || (has(COUNTS | READS) && expected >= 0)) return false;
    // Numbers from 0 to 1 are compared with chances; weights begin with others.
    const bool is_chance = is("aten::uniform_") && call.args[1].toScalar().toDouble() == 0 && call.args[2].toScalar().toDouble() == 1;
    for (const auto& [as, tensor] : on_device(schema_.arguments(), call.args))
      if (!is_small(tensor, facts_.most_integers, is_chance ? SMALL_INTEGERS : facts_.most) || !(is_overwritten(as) || is_known(tensor))) return false;
    return true;
  }

  // An argument as the CPU's kernel takes it. What is changed in place is as it was before the real kernel, whatever copies that makes.
  IValue moved(const IValue& value, const c10::Argument& as) const {
    if (value.isDevice()) return c10::Device(c10::kCPU);
    if (value.isTensor() && value.toTensor().defined() && value.toTensor().is_cuda()) {
      // What is only written may have to grow, which bytes of others cannot. The CPU's histogram is of floats only.
      if (as.is_out()) return at::empty({0}, value.toTensor().options().device(c10::kCPU));
      const Tensor same = on_cpu(value.toTensor());
      return is("aten::histc") ? same.to(at::kDouble) : is_written(as) && !is_overwritten(as) ? same.clone() : same;
    }
    if (!value.isList() || tensors_of(value).empty()) return value;
    auto list = c10::impl::GenericList(value.toList().elementType());
    for (const IValue& element : value.toListRef()) list.push_back(moved(element, as));
    return list;
  }

  // The results of the operator on the CPU; nothing where it cannot be computed there: half-precision that it does not have, buffers of another
  // shape, or an index out of range.
  std::optional<Stack> on_host(const Call& call, Stack& given) {
    try {
      if (const auto drawn = has(DRAWS) ? draw_as_card(name_, call.args) : std::nullopt) return given[0] = *drawn, given;
      if (generator_ >= 0) assume("random numbers of " + name_ + ", which a card draws in another order");
      Stack stack = given;
      call.op.callBoxed(&stack);
      failures_.store(0, std::memory_order_relaxed);
      return stack;
    } catch (const std::exception& error) {
      const std::string text = error.what(), line = text.substr(0, text.find('\n'));
      if (!has(DRAWS) && !failures_.fetch_add(1) && (line.find("out of range") != std::string::npos || line.find("out of bounds") != std::string::npos))
        batchfit_vgpu_say(("problem\t" + name_ + ", as a device's assertion would say: " + line.substr(0, 800)).c_str());
      return {};
    }
  }

  // Along which dimension an operator was told to look; all of them where that is none.
  std::optional<int64_t> dim(const Call& call) const {
    const auto at = schema_.argumentIndexWithName("dim");
    return at && call.args[*at].isInt() ? std::optional(call.args[*at].toInt()) : std::nullopt;
  }

  // Among how many something is found.
  int64_t total_of(const Call& call) const {
    const Tensor& in = call.args[0].toTensor();
    return dim(call) && in.dim() ? in.size(*dim(call)) : in.numel();
  }

  void compute(Call& call) {
    Stack given;
    for (size_t i = 0; i < call.args.size(); i++) given.push_back(int(i) == generator_ ? IValue(own_generator) : moved(call.args[i], schema_.arguments()[i]));
    // What is found is counted before the kernel asks, and drawn before it moves the generator on.
    std::optional<Stack> computed;
    if (has(COUNTS | DRAWS) && !(computed = on_host(call, given))) return leave_unknown(call);
    run(call, has(COUNTS) ? (*computed)[0].toTensor().size(dim(call).value_or(0)) : -1);
    for (const auto& [_, tensor] : on_device(schema_.returns(), results(call)))
      if (!is_small(tensor, SMALL_DECIDING, SMALL_DECIDING)) return lose(call);
    if (!computed && !(computed = on_host(call, given))) return lose(call);
    const auto leave = [](const IValue& to, const IValue& from, bool is_fresh) {
      const auto there = tensors_of(to), made = tensors_of(from);
      for (size_t i = 0; i < there.size(); i++)
        if (there[i].is_cuda()) i < made.size() ? copy_result(there[i], made[i], is_fresh) : mark_unknown(there[i]);
    };
    for (size_t i = 0; i < given.size(); i++)
      if (is_written(schema_.arguments()[i])) leave(call.args[i], given[i], false);
    for (size_t i = 0; i < schema_.returns().size() && !schema_.returns()[i].alias_info(); i++) {
      IValue& result = call.stack->end()[i - schema_.returns().size()];
      result.isTensor() || result.isList() ? leave(result, (*computed)[i], true) : void(result = (*computed)[i]);  // a number or a boolean, such as `equal`
    }
  }

  void leave_unknown(Call& call) {
    if (has(READS)) assume("zeros where " + name_ + " reads sizes");
    run(call, has(COUNTS) ? count_unknown(call) : -1);
    lose(call);
  }

  // Nothing that the kernel wrote is known, but that no gradient overflowed (that number stays zero) and what is said or chosen. What was never known reads
  // as zero instead of what its memory held before, and what is drawn differs from what is drawn elsewhere.
  void lose(Call& call) const {
    for (const auto& [as, tensor] : on_device(schema_.arguments(), call.args)) {
      if (!is_written(as) || (has(UNSCALES) && tensor.numel() == 1)) continue;
      mark_unknown(tensor);
      if (has(DRAWS) && tensor.is_floating_point() && is_small(tensor, 0, CARRIED)) on_cpu(tensor).flatten().slice(0, 0, 2).uniform_(0, 1, own_generator);
    }
    for (const auto& [as, tensor] : on_device(schema_.returns(), results(call))) {
      if (as.alias_info()) continue;
      mark_unknown(tensor);
      const bool is_bool = tensor.scalar_type() == c10::kBool, is_status = as.name() == "info";
      const auto [said, is_sure] = is_bool && has(ASKS) ? answer(name_, call.args, tensor) : std::pair(false, false);
      if (is_sure) fill(tensor, said, said ? SMALL_INTEGERS : SMALL_MASK, true), assume("finite numbers, single ones above zero (" + name_ + ")");
      else if (is_status || (reads_zeros && span(tensor) <= ZEROED)) fill(tensor, 0, SMALL_INTEGERS, true);
      else fill(tensor, said, is_bool ? CARRIED : ZEROED, false);
      if (is_status) assume("success of " + name_);
    }
    if (is("aten::equal") && call.stack->back().toBool()) call.stack->back() = are_equal(call.args[0].toTensor(), call.args[1].toTensor());
    if (has(UNSCALES)) assume("no overflow of gradients (" + name_ + ")");
    if (has(COUNTS | ONE | SEVERAL | ORDER)) choose(call);
  }

  // How many are found among unknown things (`nonzero`, indexing by a mask): none, unless the run says otherwise. Boxes all survive (torchvision's nms).
  int64_t count_unknown(const Call& call) const {
    static const double part = std::clamp(atof(getenv("BATCHFIT_VGPU_FOUND") ?: "0"), 0.0, 1.0);
    const Tensor& in = call.args[0].toTensor();
    if (expected >= 0) return expected;
    if (has(ORDER)) return in.size(0);
    if (in.is_sparse()) return coalesced_indices(in).size(1);
    assume("how many " + name_ + " finds", "BATCHFIT_VGPU_FOUND=1");
    const bool is_guessed = in.scalar_type() == c10::kBool && is_small(in, CARRIED, 0);
    const int64_t guessed = is_guessed ? std::count((const char*)in.const_data_ptr(), (const char*)in.const_data_ptr() + span(in), 1) : 0;
    return std::max<int64_t>({guessed, std::llround(part * total_of(call)), !is("aten::nonzero") && total_of(call)});
  }

  // Coalescing depends on indices only: gradients of embeddings have known indices and unknown values. All are different where they are not known.
  Tensor coalesced_indices(const Tensor& tensor) const {
    const Tensor indices = tensor._indices();
    if (indices.numel() && is_small(indices, SMALL_INTEGERS) && is_known(indices)) return std::get<0>(at::unique_dim(on_cpu(indices), 1));
    assume("different indices (" + name_ + ")");
    return indices;
  }

  void choose(const Call& call) const {
    const auto given = results(call);
    const Tensor &in = call.args[0].toTensor(), &last = given.back().toTensor();
    if (in.is_sparse()) {
      const Tensor from = coalesced_indices(in);
      from.is_cuda() ? mark_unknown(last._indices()) : copy_result(last._indices(), from, true);
    }
    for (size_t i = 1; i < given.size() && has(COUNTS); i++) fill_classes(given[i].toTensor(), given[0].toTensor().size(dim(call).value_or(0)), total_of(call), i == 1);
    if (!has(ONE | SEVERAL | ORDER) || !is_small(last, SMALL_INTEGERS) || !last.numel()) return;
    const int64_t along = dim(call).value_or(has(COUNTS) ? 0 : -1);
    fill_choices(last, facts_.what, along, schema_.argumentIndexWithName("dim") ? total_of(call) : in.size(along));
    assume("choices of " + name_);
  }
};

// Whether wrapping it would cost for nothing.
static bool is_left_alone(const c10::OperatorHandle& op, const c10::KernelFunction& real) {
  const std::string& name = op.schema().name();
  const c10::OperatorKernel* functor = real.boxed_kernel_func_.functor_.get();
  if (!real.isValid() || real.isFallthrough() || (functor && (dynamic_cast<const Kernel*>(functor) || strstr(typeid(*functor).name(), "Python")))) return true;
  const size_t end = name.find("::");
  if ((facts_of(name.substr(end + 2)).what | facts_of(name.substr(0, end)).what) & ALONE) return true;
  const auto &takes = op.schema().arguments(), &gives = op.schema().returns();
  if (std::any_of(gives.begin(), gives.end(), [&](const auto& one) { return one.alias_info() && !Kernel::is_written(one); })) return true;  // a view
  return name != "aten::equal" && name != "aten::_local_scalar_dense" && std::none_of(takes.begin(), takes.end(), Kernel::is_written) &&
         std::none_of(gives.begin(), gives.end(), [](const auto& one) { return one.type()->str().find("Tensor") != std::string::npos; });
}

// Hears what PyTorch says of registrations: that there are more operators, and warnings that kernels are replaced.
struct Listener : c10::OpRegistrationListener, c10::WarningHandler {
  void onOperatorRegistered(const c10::OperatorHandle&) override { is_stale.store(true, std::memory_order_relaxed); }
  void onOperatorDeregistered(const c10::OperatorHandle&) override {}
  void process(const c10::Warning&) override {}
};

int Kernel::wrap_all() {
  static std::mutex mutex;
  static auto* wrapped = new std::vector<c10::RegistrationHandleRAII>;
  std::unique_lock<std::mutex> lock(mutex, std::try_to_lock);
  if (!lock) return 0;
  is_stale.store(false);
  Listener listener;
  c10::WarningUtils::WarningHandlerGuard guard(&listener);
  auto& dispatcher = c10::Dispatcher::singleton();
  for (const auto& name : dispatcher.getAllOpNames()) {
    for (const auto key : {DispatchKey::CUDA, DispatchKey::SparseCUDA}) {
      const auto op = dispatcher.findSchema(name);
      // `copy_` calls its kernels below the dispatcher, and has none for CUDA.
      const auto of = name.name == "aten::copy_" && op && !op->hasKernelForDispatchKey(key) ? DispatchKey::CompositeExplicitAutograd : key;
      if (!op || !op->hasKernelForDispatchKey(of)) continue;
      const c10::KernelFunction& real = op->operatorDef_->op.kernelForDispatchKey(of);
      if (is_left_alone(*op, real)) continue;
      wrapped->push_back(dispatcher.registerImpl(name, key, c10::KernelFunction::makeFromBoxedFunctor(std::make_unique<Kernel>(*op, real, key)), {}, nullptr, "batchfit"));
    }
  }
  return static_cast<int>(wrapped->size());
}

}  // namespace batchfit

extern "C" __attribute__((visibility("default"))) const char* batchfit_values_made_of() { return MADE_OF; }

extern "C" __attribute__((visibility("default"))) int batchfit_values_install() {
  static const auto* listener [[maybe_unused]] = new c10::RegistrationHandleRAII(c10::Dispatcher::singleton().addRegistrationListener(std::make_unique<batchfit::Listener>()));
  return batchfit::Kernel::wrap_all();
}

// Has these be called when an operator begins on a device, and when more is allocated there than ever, unless they are null.
extern "C" __attribute__((visibility("default"))) void batchfit_values_tell(void (*of_operator)(), void (*of_peak)(int)) {
  batchfit::tell_operator.store(of_operator), batchfit::tell_peak.store(of_peak);
}
