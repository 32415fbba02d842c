// Values of small tensors on a virtual GPU. Scripts and libraries decide by numbers: how long sentences are, whether a loss is finite,
// which experts a token goes to. Kernels do not run there, so this object wraps every kernel that was registered for CUDA with PyTorch's
// dispatcher (kernel.h). It lies below autograd, autocast and compilation, which do not notice it.
//
// It is built against the headers of one PyTorch, since the dispatcher has no C interface, and loaded by python/values.py.
#include "kernel.h"

namespace batchfit {

// Whether wrapping it would cost for nothing: it has no bytes to be known, or consists of operators and launches that are seen by themselves.
static bool is_left_alone(const c10::OperatorHandle& op, const c10::KernelFunction& real) {
  static const std::set<std::string> names = {"aten::set_", "aten::record_stream", "aten::_pin_memory", "aten::_efficientzerotensor", "aten::_cudnn_init_dropout_state"};
  // Collectives are answered by the preload; calling them on the CPU would talk to other processes.
  static const std::set<std::string> namespaces = {"c10d", "_c10d_functional", "_c10d_functional_autograd", "c10d_functional", "symm_mem", "_dtensor", "profiler", "rpc", "prim", "inductor"};
  const auto& schema = op.schema();
  const std::string& name = schema.operator_name().name;
  const c10::OperatorKernel* functor = real.boxed_kernel_func_.functor_.get();
  if (!real.isValid() || real.isFallthrough() || (functor && strstr(typeid(*functor).name(), "Python"))) return true;
  if (names.count(name) || namespaces.count(name.substr(0, name.find("::")))) return true;
  const auto is_written = [](const c10::Argument& one) { return one.alias_info() && one.alias_info()->isWrite(); };
  const auto &takes = schema.arguments(), &gives = schema.returns();
  if (std::any_of(gives.begin(), gives.end(), [&](const auto& one) { return one.alias_info() && !is_written(one); })) return true;  // a view
  return name != "aten::equal" && name != "aten::_local_scalar_dense" && std::none_of(takes.begin(), takes.end(), is_written) &&
         std::none_of(gives.begin(), gives.end(), [](const auto& one) { return one.type()->str().find("Tensor") != std::string::npos; });
}

struct Silent : c10::WarningHandler {
  void process(const c10::Warning&) override {}
};

struct Listener : c10::OpRegistrationListener {
  void onOperatorRegistered(const c10::OperatorHandle&) override { is_stale.store(true, std::memory_order_relaxed); }
  void onOperatorDeregistered(const c10::OperatorHandle&) override {}
};

int wrap_all() {
  static std::mutex mutex;
  static auto* libraries = new std::map<std::string, std::unique_ptr<torch::Library>>;
  static auto* wrapped = new std::set<std::string>;
  std::unique_lock<std::mutex> lock(mutex, std::try_to_lock);
  if (!lock) return 0;
  is_stale.store(false);
  Silent silent;
  c10::WarningUtils::WarningHandlerGuard guard(&silent);
  auto& dispatcher = c10::Dispatcher::singleton();
  const size_t before = wrapped->size();
  for (const auto& name : dispatcher.getAllOpNames()) {
    const auto op = dispatcher.findSchema(name);
    for (const auto& [key, on_host] : {std::pair(DispatchKey::CUDA, DispatchKey::CPU), std::pair(DispatchKey::SparseCUDA, DispatchKey::SparseCPU)}) {
      const std::string full = name.name + (name.overload_name.empty() ? "" : "." + name.overload_name), space = full.substr(0, full.find("::"));
      // `copy_` calls its kernels below the dispatcher, and has none for CUDA.
      const auto of = key == DispatchKey::CUDA && full == "aten::copy_" ? DispatchKey::CompositeExplicitAutograd : key;
      if (!op || space == full || !op->hasKernelForDispatchKey(of) || wrapped->count(full + c10::toString(key))) continue;
      const c10::KernelFunction& real = op->operatorDef_->op.kernelForDispatchKey(of);
      if (is_left_alone(*op, real)) continue;
      try {
        auto& library = (*libraries)[space + c10::toString(key)];
        if (!library) library = std::make_unique<torch::Library>(torch::Library::IMPL, space, key, __FILE__, __LINE__);
        library->impl(full.substr(space.size() + 2).c_str(), torch::CppFunction::makeFromBoxedFunctor(std::make_unique<Kernel>(*op, real, on_host)));
        wrapped->insert(full + c10::toString(key));
      } catch (const std::exception& error) {
        say("problem\tvalues: " + full + ": " + std::string(error.what()).substr(0, 200));
      }
    }
  }
  return static_cast<int>(wrapped->size() - before);
}

}  // namespace batchfit

// What this was made from, for python/values.py.
extern "C" __attribute__((visibility("default"))) const char* batchfit_values_made_of() { return MADE_OF; }

// Begins; says how many kernels are wrapped.
extern "C" __attribute__((visibility("default"))) int batchfit_values_install() {
  using namespace batchfit;
  static const auto* listener [[maybe_unused]] = new c10::RegistrationHandleRAII(c10::Dispatcher::singleton().addRegistrationListener(std::make_unique<Listener>()));
  return wrap_all();
}

// Has these be called when an operator begins on a device, and when more is allocated there than ever; null ends it.
extern "C" __attribute__((visibility("default"))) void batchfit_values_on_operator(void (*tell)()) { batchfit::tell_operator.store(tell); }
extern "C" __attribute__((visibility("default"))) void batchfit_values_on_peak(void (*tell)(int)) { batchfit::tell_peak.store(tell); }
