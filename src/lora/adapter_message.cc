// Writes the members of an adapter one after the other.
#include "lora/adapter_message.h"

namespace sluice {
namespace {

// Calls visit(member) for every member of a module.
template <class Module, class F>
void each_member(Module& m, F&& visit) {
  visit(m.name), visit(m.rank), visit(m.inputs), visit(m.outputs), visit(m.experts), visit(m.scale), visit(m.a),
      visit(m.b);
  visit(m.embedding), visit(m.magnitude), visit(m.bias), visit(m.saved), visit(m.saved_bias), visit(m.tokens);
}

}  // namespace

void write_adapter(MessageWriter& write, const Adapter& adapter) {
  write(adapter.folder), write(adapter.digest), write(adapter.rank);
  write(static_cast<uint64_t>(adapter.modules.size()));
  for (const Adapter::Module& module : adapter.modules) each_member(module, write);
}

std::shared_ptr<Adapter> receive_adapter(MessageReader& read) {
  auto adapter = std::make_shared<Adapter>();
  read(adapter->folder), read(adapter->digest), read(adapter->rank);
  uint64_t modules = 0;
  read(modules);
  for (uint64_t i = 0; i < modules; ++i) each_member(adapter->modules.emplace_back(), read);
  read.end();
  return adapter;
}

}  // namespace sluice
