// Values of small tensors on a virtual GPU. Scripts and libraries decide by numbers: how long sentences are, whether a loss is finite,
// which experts a token goes to. Kernels do not run there, so this object wraps every kernel that was registered for CUDA with PyTorch's
// dispatcher (kernel.h). It lies below autograd, autocast and compilation, which do not notice it.
//
// It is built against the headers of one PyTorch, since the dispatcher has no C interface, and loaded by python/values.py.
#include "kernel.h"

namespace batchfit {

// What has no bytes to be known, or whose answer is read from the device anyway; wrapping these would cost for nothing.
static bool is_left_alone(const c10::OperatorHandle& op) {
  static const std::set<std::string> names = {"aten::set_",                  "aten::record_stream",
                                              "aten::_pin_memory", "aten::_efficientzerotensor", "aten::_cudnn_init_dropout_state"};
  // Collectives are answered by the preload; calling them on the CPU would talk to other processes.
  static const std::set<std::string> namespaces = {"c10d", "_c10d_functional", "_c10d_functional_autograd", "c10d_functional", "symm_mem", "_dtensor", "profiler", "rpc", "prim", "inductor"};
  const auto& schema = op.schema();
  const std::string& name = schema.operator_name().name;
  if (names.count(name) || namespaces.count(name.substr(0, name.find("::")))) return true;
  bool has_results = name == "aten::equal" || name == "aten::_local_scalar_dense";
  for (const auto& argument : schema.arguments()) has_results = has_results || (argument.alias_info() && argument.alias_info()->isWrite());
  for (const auto& result : schema.returns()) {
    if (result.alias_info() && !result.alias_info()->isWrite()) return true;  // a view
    has_results = has_results || result.type()->str().find("Tensor") != std::string::npos;
  }
  return !has_results;
}

// A kernel written in Python consists of operators and launches, which are seen by themselves.
static bool is_python(const c10::KernelFunction& kernel) {
  const c10::OperatorKernel* functor = kernel.boxed_kernel_func_.functor_.get();
  return functor && strstr(typeid(*functor).name(), "Python");
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
  int count = 0;
  for (const auto& name : dispatcher.getAllOpNames()) {
    const auto op = dispatcher.findSchema(name);
    if (!op) continue;
    const std::pair<DispatchKey, DispatchKey> keys[] = {
        {DispatchKey::CUDA, DispatchKey::CPU}, {DispatchKey::SparseCUDA, DispatchKey::SparseCPU}, {DispatchKey::SparseCsrCUDA, DispatchKey::SparseCsrCPU}};
    for (const auto& [key, on_host] : keys) {
      // `copy_` calls its kernels below the dispatcher, and has none for CUDA.
      const bool is_copy = key == DispatchKey::CUDA && name.name == "aten::copy_" && name.overload_name.empty();
      const auto of = is_copy ? DispatchKey::CompositeExplicitAutograd : key;
      if (!op->hasKernelForDispatchKey(of)) continue;
      const std::string full = name.name + (name.overload_name.empty() ? "" : "." + name.overload_name);
      const auto split = full.find("::");
      if (split == std::string::npos || wrapped->count(full + c10::toString(key)) || is_left_alone(*op)) continue;
      const c10::KernelFunction& real = op->operatorDef_->op.kernelForDispatchKey(of);
      if (!real.isValid() || real.isFallthrough() || is_python(real)) continue;
      auto& library = (*libraries)[full.substr(0, split) + c10::toString(key)];
      try {
        if (!library) library = std::make_unique<torch::Library>(torch::Library::IMPL, full.substr(0, split), key, __FILE__, __LINE__);
        library->impl(full.substr(split + 2).c_str(), torch::CppFunction::makeFromBoxedFunctor(std::make_unique<Kernel>(*op, real, on_host)));
        wrapped->insert(full + c10::toString(key));
        count++;
      } catch (const std::exception& error) {
        say("problem\tvalues: " + full + ": " + std::string(error.what()).substr(0, 200));
      }
    }
  }
  return count;
}

}  // namespace batchfit

// What this was made from, for python/values.py.
extern "C" __attribute__((visibility("default"))) const char* batchfit_values_made_of() { return MADE_OF; }

// Begins; says how many kernels are wrapped.
extern "C" __attribute__((visibility("default"))) int batchfit_values_install() {
  using namespace batchfit;
  static auto* listener = new c10::RegistrationHandleRAII(c10::Dispatcher::singleton().addRegistrationListener(std::make_unique<Listener>()));
  (void)listener;
  return wrap_all();
}

// Has these be called when an operator begins on a device, and when more is allocated there than ever; null ends it.
extern "C" __attribute__((visibility("default"))) void batchfit_values_on_operator(void (*tell)()) { batchfit::tell_operator.store(tell); }
extern "C" __attribute__((visibility("default"))) void batchfit_values_on_peak(void (*tell)(int)) { batchfit::tell_peak.store(tell); }
