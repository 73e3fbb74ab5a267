// Renders a template: variables, statements, loops and output.
#include <fmt/core.h>

#include "chat/jinja/interpreter.h"
#include "chat/jinja/parser.h"

namespace sluice::jinja {

Template::Template(std::string_view source) : program_(parse(source)) {}
Template::Template(Template&&) noexcept = default;
Template& Template::operator=(Template&&) noexcept = default;
Template::~Template() = default;

std::string Template::render(const Json& variables, const RenderOptions& options) const {
  return Interpreter(*program_, options).run(variables);
}

Interpreter::Interpreter(const Program& program, const RenderOptions& options)
    : Runtime(options), program_(program), globals_(program.names.size()) {
  constants_.reserve(program.constants.size());
  for (const Constant& constant : program.constants) constants_.push_back(from_constant(constant));
}

Value Interpreter::from_constant(const Constant& constant) {
  if (const auto* text = std::get_if<std::string>(&constant)) return string(*text);
  if (const auto* integer = std::get_if<int64_t>(&constant)) return Value::integer(*integer);
  if (const auto* real = std::get_if<double>(&constant)) return Value::real(*real);
  if (const auto* boolean = std::get_if<bool>(&constant)) return Value::boolean(*boolean);
  return Value();
}

std::string Interpreter::run(const Json& variables) {
  // Convert only variables that the template mentions.
  for (size_t id = 0; id < program_.names.size(); ++id) {
    const auto variable = variables.find(program_.names[id]);
    if (variable != variables.end()) globals_[id] = from_json(*variable);
  }
  begin();
  std::string out;
  out_ = &out;
  execute(program_.body);
  return out;
}

Value Interpreter::from_json(const Json& json) {
  const Depth depth(*this);
  switch (json.type()) {
    case Json::value_t::boolean:
      return Value::boolean(json.get<bool>());
    case Json::value_t::number_integer:
      return Value::integer(json.get<int64_t>());
    case Json::value_t::number_unsigned:
      return integer(json.get<uint64_t>());
    case Json::value_t::number_float:
      return Value::real(json.get<double>());
    case Json::value_t::string:
      return string(json.get_ref<const std::string&>());
    case Json::value_t::array: {
      std::vector<Value> items;
      items.reserve(json.size());
      for (const Json& item : json) items.push_back(from_json(item));
      return list(std::move(items));
    }
    case Json::value_t::object: {
      Dict items;
      items.reserve(json.size());
      for (const auto& [key, value] : json.items()) items.set(string(key), from_json(value));
      return dict(std::move(items));
    }
    default:
      return Value();
  }
}

// --- output

void Interpreter::write(std::string_view text) {
  if (out_->size() + text.size() > limits().output_bytes) {
    fail(fmt::format("the rendered text is longer than {} bytes", limits().output_bytes));
  }
  append(*out_, text);
}

void Interpreter::write_value(const Value& value) {
  if (value.is(Kind::kString)) return write(value.text());
  append_str(*this, *out_, value);
  write("");  // checks the length
}

// --- variables

const Value* Interpreter::find(NameId id) const {
  for (const Scope* scope = scope_.get(); scope; scope = scope->parent.get()) {
    for (const auto& [name, value] : scope->variables) {
      if (name == id) return &value;
    }
  }
  return globals_[id] ? &*globals_[id] : nullptr;
}

Value Interpreter::load(NameId id) {
  if (const Value* value = find(id)) return *value;
  if (const Builtin* global = find_global(program_.names[id])) return function(*global, Value());
  return undefined(fmt::format("'{}' is undefined", program_.names[id]));
}

void Interpreter::store(NameId id, Value value) {
  if (!scope_) {
    globals_[id] = std::move(value);
    return;
  }
  for (auto& [name, old] : scope_->variables) {
    if (name == id) {
      old = std::move(value);
      return;
    }
  }
  scope_->variables.emplace_back(id, std::move(value));
}

void Interpreter::check_namespaces(const Target& target) {
  if (const auto* member = std::get_if<NamespaceTarget>(&target.node)) {
    const Value* object = find(member->id);
    if (!object || !object->is(Kind::kNamespace)) fail("cannot assign attribute on non-namespace object");
  } else if (const auto* items = std::get_if<TupleTarget>(&target.node)) {
    for (const Target& item : items->items) check_namespaces(item);
  }
}

void Interpreter::assign(const Target& target, const Value& value) {
  if (const auto* name = std::get_if<NameTarget>(&target.node)) {
    store(name->id, value);
  } else if (const auto* member = std::get_if<NamespaceTarget>(&target.node)) {
    const Value object = load(member->id);
    if (!object.is(Kind::kNamespace)) fail("cannot assign attribute on non-namespace object");
    Dict& attributes = object.as<Namespace>().attributes;
    const bool fresh = !attributes.find(member->attribute);
    if (fresh) heap.expect(sizeof(Dict::Item));
    attributes.set(string(member->attribute), value);
  } else {
    const auto& targets = std::get<TupleTarget>(target.node).items;
    const std::vector<Value> values = to_vector(*this, value);
    if (values.size() < targets.size()) {
      fail(fmt::format("not enough values to unpack (expected {}, got {})", targets.size(), values.size()));
    }
    if (values.size() > targets.size()) fail(fmt::format("too many values to unpack (expected {})", targets.size()));
    for (size_t i = 0; i < targets.size(); ++i) assign(targets[i], values[i]);
  }
}

// The value tested by a for loop's condition; with several variables, a tuple of their values.
Value Interpreter::assigned(const Target& target) {
  const auto* items = std::get_if<TupleTarget>(&target.node);
  if (!items) return load(std::get<NameTarget>(target.node).id);
  std::vector<Value> values;
  for (const Target& item : items->items) values.push_back(assigned(item));
  return tuple(std::move(values));
}

// --- statements

Interpreter::Flow Interpreter::execute(const Block& block) {
  for (const Stmt& stmt : block) {
    const Flow flow = execute(stmt);
    if (flow != Flow::kNext) return flow;
  }
  return Flow::kNext;
}

Interpreter::Flow Interpreter::execute(const Stmt& stmt) {
  spend();
  const Depth depth(*this);
  line = stmt.line;
  if (const auto* text = std::get_if<TextStmt>(&stmt.node)) {
    write(text->text);
  } else if (const auto* output = std::get_if<OutputStmt>(&stmt.node)) {
    write_value(evaluate(*output->value));
  } else if (const auto* branch = std::get_if<IfStmt>(&stmt.node)) {
    return run_if(*branch);
  } else if (const auto* loop = std::get_if<ForStmt>(&stmt.node)) {
    return run_for(*loop);
  } else if (const auto* set = std::get_if<SetStmt>(&stmt.node)) {
    check_namespaces(set->target);
    assign(set->target, evaluate(*set->value));
  } else if (const auto* set_block = std::get_if<SetBlockStmt>(&stmt.node)) {
    return run_set_block(*set_block);
  } else if (const auto* macro = std::get_if<MacroStmt>(&stmt.node)) {
    store(macro->id, Value(Kind::kMacro, heap.make<Macro>(0, *macro->macro, scope_)));
  } else if (const auto* call = std::get_if<CallStmt>(&stmt.node)) {
    run_call(*call);
  } else if (const auto* filter = std::get_if<FilterStmt>(&stmt.node)) {
    return run_filter(*filter);
  } else if (const auto* with = std::get_if<WithStmt>(&stmt.node)) {
    return run_with(*with);
  } else {
    return std::holds_alternative<BreakStmt>(stmt.node) ? Flow::kBreak : Flow::kContinue;
  }
  return Flow::kNext;
}

Interpreter::Flow Interpreter::run_if(const IfStmt& stmt) {
  for (const auto& [test, body] : stmt.branches) {
    if (truthy(evaluate(*test))) return execute(body);
  }
  return execute(stmt.otherwise);
}

Interpreter::Flow Interpreter::run_for(const ForStmt& stmt) {
  Value iterable = evaluate(*stmt.iterable);
  if (!stmt.recursive) return run_loop(stmt, std::move(iterable), scope_, 1);
  write(capture([&] { run_loop(stmt, std::move(iterable), scope_, 1); }));
  return Flow::kNext;
}

// Yields the items for which the loop's condition holds. Each is tested when the loop reaches it.
Value Interpreter::filtered_items(const ForStmt& stmt, Value iterable, const Ref<Scope>& outer) {
  return iterator([this, &stmt, outer, cursor = Cursor(*this, std::move(iterable))](Value& out) mutable {
    while (cursor.next(out)) {
      const bool wanted = in_scope(new_scope(outer), [&] {
        assign(stmt.target, out);
        if (!truthy(evaluate(*stmt.test))) return false;
        out = assigned(stmt.target);
        return true;
      });
      if (wanted) return true;
    }
    return false;
  });
}

Interpreter::Flow Interpreter::run_loop(const ForStmt& stmt, Value iterable, const Ref<Scope> outer, int64_t depth) {
  if (stmt.test) iterable = filtered_items(stmt, std::move(iterable), outer);
  const Ref<Loop> loop = heap.make<Loop>(0, *this, stmt, std::move(iterable), outer, depth);
  const Ref<Scope> before = scope_;
  Ref<Scope> scope;
  bool empty = true;
  Flow flow = Flow::kNext;
  scope_ = outer;
  for (Value item; flow != Flow::kBreak && loop->next(item);) {
    if (scope && scope->refs == 1) {
      scope->variables.clear();
    } else {
      scope = new_scope(outer);
    }
    scope_ = scope;
    if (stmt.uses_loop) store(program_.loop, Value(Kind::kLoop, loop));
    assign(stmt.target, item);
    flow = execute(stmt.body);
    if (flow == Flow::kNext) empty = false;  // as in jinja2, iterations ended by break or continue do not count
    scope_ = outer;
  }
  flow = Flow::kNext;
  if (empty && !stmt.otherwise.empty()) {
    flow = in_scope(new_scope(outer), [&] { return execute(stmt.otherwise); });
  }
  scope_ = before;
  return flow;
}

Interpreter::Flow Interpreter::run_set_block(const SetBlockStmt& stmt) {
  Flow flow = Flow::kNext;
  const Ref<Scope> inner = new_scope(scope_);
  std::string text = capture([&] { flow = in_scope(inner, [&] { return execute(stmt.body); }); });
  if (flow != Flow::kNext) return flow;
  Value value = string(std::move(text));
  if (stmt.filter) {
    filter_input_ = std::move(value);
    value = in_scope(inner, [&] { return evaluate(*stmt.filter); });
  }
  check_namespaces(stmt.target);
  assign(stmt.target, value);
  return Flow::kNext;
}

Interpreter::Flow Interpreter::run_filter(const FilterStmt& stmt) {
  Flow flow = Flow::kNext;
  const Ref<Scope> inner = new_scope(scope_);
  std::string text = capture([&] { flow = in_scope(inner, [&] { return execute(stmt.body); }); });
  if (flow != Flow::kNext) return flow;
  filter_input_ = string(std::move(text));
  const Value filtered = in_scope(inner, [&] { return evaluate(*stmt.filter); });
  if (!filtered.is(Kind::kString)) fail(fmt::format("a filter block must give text, not {}", type_name(filtered)));
  write(filtered.text());
  return Flow::kNext;
}

Interpreter::Flow Interpreter::run_with(const WithStmt& stmt) {
  std::vector<Value> values;  // evaluated before any variable is set
  for (const auto& [target, value] : stmt.variables) values.push_back(evaluate(*value));
  return in_scope(new_scope(scope_), [&] {
    for (size_t i = 0; i < values.size(); ++i) assign(stmt.variables[i].first, values[i]);
    return execute(stmt.body);
  });
}

void Interpreter::run_call(const CallStmt& stmt) {
  const Value caller(Kind::kMacro, heap.make<Macro>(0, *stmt.caller, scope_));
  write_value(evaluate_call(std::get<CallExpr>(stmt.call->node), &caller));
}

// --- the loop variable

void Loop::clear() {
  source = current = before = Value();
  after.reset();
  changed.reset();
  scope = Ref<Scope>();
  cursor.reset();
}

bool Loop::peek() {
  if (after) return true;
  Value value;
  if (!cursor.next(value)) return false;
  after = std::move(value);
  return true;
}

bool Loop::next(Value& out) {
  if (!peek()) return false;
  out = *std::move(after);
  after.reset();
  ++index0;
  before = std::move(current);
  current = out;
  return true;
}

int64_t Loop::length(Runtime& rt) {
  if (counted) return *counted;
  if (const auto n = jinja::length(source)) return *(counted = n);
  std::vector<Value> rest;
  for (Value value; cursor.next(value);) rest.push_back(std::move(value));
  counted = static_cast<int64_t>(rest.size()) + index0 + 1 + (after ? 1 : 0);
  cursor = Cursor(rt, rt.list(std::move(rest)));
  return *counted;
}

std::optional<Value> Interpreter::loop_attribute(const Value& value, std::string_view name) {
  auto& loop = value.as<Loop>();
  if (name == "index") return Value::integer(loop.index0 + 1);
  if (name == "index0") return Value::integer(loop.index0);
  if (name == "first") return Value::boolean(loop.index0 == 0);
  if (name == "last") return Value::boolean(!loop.peek());
  if (name == "length") return Value::integer(loop.length(*this));
  if (name == "revindex") return Value::integer(loop.length(*this) - loop.index0);
  if (name == "revindex0") return Value::integer(loop.length(*this) - loop.index0 - 1);
  if (name == "depth") return Value::integer(loop.depth);
  if (name == "depth0") return Value::integer(loop.depth - 1);
  if (name == "previtem") return loop.index0 == 0 ? undefined("there is no previous item") : loop.before;
  if (name == "nextitem") return loop.peek() ? *loop.after : undefined("there is no next item");
  return std::nullopt;
}

}  // namespace sluice::jinja
