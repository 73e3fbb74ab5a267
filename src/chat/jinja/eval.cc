// Evaluates expressions and calls.
#include <fmt/core.h>

#include "chat/jinja/interpreter.h"

namespace sluice::jinja {

Value Interpreter::evaluate(const Expr& expr) {
  spend();
  const Depth depth(*this);
  line = expr.line;
  return std::visit([this](const auto& node) { return evaluate(node); }, expr.node);
}

Value Interpreter::evaluate(const ConstantExpr& node) { return constants_[node.index]; }

Value Interpreter::evaluate(const NameExpr& node) { return load(node.id); }

Value Interpreter::evaluate(const ListExpr& node) {
  std::vector<Value> items;
  items.reserve(node.items.size());
  for (const ExprPtr& item : node.items) items.push_back(evaluate(*item));
  return node.tuple ? tuple(std::move(items)) : list(std::move(items));
}

Value Interpreter::evaluate(const DictExpr& node) {
  Dict out;
  out.reserve(node.items.size());
  for (const auto& [key_expr, value_expr] : node.items) {
    Value key = evaluate(*key_expr);
    require_hashable(*this, key);
    out.set(std::move(key), evaluate(*value_expr));
  }
  return dict(std::move(out));
}

Value Interpreter::evaluate(const AttributeExpr& node) {
  return get_attribute(*this, evaluate(*node.object), node.name);
}

Value Interpreter::evaluate(const ItemExpr& node) {
  const Value object = evaluate(*node.object);
  return get_item(*this, object, evaluate(*node.key));
}

Value Interpreter::evaluate(const SliceExpr& node) {
  const Value object = evaluate(*node.object);
  const auto bound = [this](const ExprPtr& expr) { return expr ? evaluate(*expr) : Value(); };
  const Value start = bound(node.start);
  const Value stop = bound(node.stop);
  const Value step = bound(node.step);
  return slice(*this, object, &start, &stop, &step);
}

CallArguments Interpreter::evaluate(const Arguments& node) {
  CallArguments out;
  out.positional.reserve(node.positional.size());
  for (const ExprPtr& expr : node.positional) out.positional.push_back(evaluate(*expr));
  out.named.reserve(node.named.size());
  for (const Keyword& keyword : node.named) out.named.emplace_back(keyword.name, evaluate(*keyword.value));
  if (node.star) {
    for (Value& value : to_vector(*this, evaluate(*node.star))) out.positional.push_back(std::move(value));
  }
  if (node.star_star) {
    const Value mapping = evaluate(*node.star_star);
    if (!mapping.is(Kind::kDict)) fail(fmt::format("argument after ** must be a mapping, not {}", type_name(mapping)));
    for (const auto& [key, value] : mapping.dict().items()) {
      spend();
      const std::string name(expect_text(*this, key, "the name of an argument"));
      if (out.find(name)) fail(fmt::format("argument '{}' given twice", name));
      out.named.emplace_back(name, value);
    }
  }
  return out;
}

Value Interpreter::evaluate(const CallExpr& node) { return evaluate_call(node, nullptr); }

Value Interpreter::evaluate_call(const CallExpr& node, const Value* caller) {
  const auto arguments = [&] {
    CallArguments out = evaluate(node.arguments);
    if (caller) out.named.emplace_back("caller", *caller);
    return out;
  };
  // Call methods directly, without creating a bound-method value.
  if (const auto* attribute = std::get_if<AttributeExpr>(&node.callee->node)) {
    const Value object = evaluate(*attribute->object);
    if (const Builtin* method = find_method(object, attribute->name)) return apply(*method, object, arguments());
    return call(get_attribute(*this, object, attribute->name), arguments());
  }
  const Value callee = evaluate(*node.callee);
  return call(callee, arguments());
}

Value Interpreter::evaluate(const FilterExpr& node) {
  const Value input = node.input ? evaluate(*node.input) : filter_input_;
  if (!node.filter) fail(fmt::format("no filter named '{}'", node.name));
  return apply(*node.filter, input, evaluate(node.arguments));
}

Value Interpreter::evaluate(const TestExpr& node) {
  const Value input = evaluate(*node.input);
  if (!node.test) fail(fmt::format("no test named '{}'", node.name));
  return apply(*node.test, input, evaluate(node.arguments));
}

Value Interpreter::evaluate(const UnaryExpr& node) {
  const Value operand = evaluate(*node.operand);
  switch (node.op) {
    case UnaryOp::kNot:
      return Value::boolean(!truthy(operand));
    case UnaryOp::kNegate:
      return negate(*this, operand);
    default:
      return plus(*this, operand);
  }
}

Value Interpreter::evaluate(const BinaryExpr& node) {
  Value value = evaluate(*node.first);
  for (const auto& [op, operand] : node.rest) value = binary(*this, op, value, evaluate(*operand));
  return value;
}

Value Interpreter::evaluate(const ConcatExpr& node) {
  std::string out;
  for (const ExprPtr& part : node.parts) append_str(*this, out, evaluate(*part));
  return string(std::move(out));
}

Value Interpreter::evaluate(const LogicExpr& node) {
  Value value;
  for (const ExprPtr& operand : node.operands) {
    value = evaluate(*operand);
    if (truthy(value) != node.all) break;
  }
  return value;
}

Value Interpreter::evaluate(const CompareExpr& node) {
  Value left = evaluate(*node.first);
  for (const auto& [op, operand] : node.rest) {
    Value right = evaluate(*operand);
    if (!compare(*this, op, left, right)) return Value::boolean(false);
    left = std::move(right);
  }
  return Value::boolean(true);
}

Value Interpreter::evaluate(const ConditionalExpr& node) {
  const uint32_t here = line;
  if (truthy(evaluate(*node.test))) return evaluate(*node.yes);
  if (node.no) return evaluate(*node.no);
  return undefined(
      fmt::format("the inline if-expression on line {} evaluated to false and no else section was defined", here));
}

// --- calls

Value Interpreter::call(const Value& callee, CallArguments arguments) {
  spend();
  const Depth depth(*this);
  switch (callee.kind()) {
    case Kind::kFunction:
      return apply(callee.as<Function>().builtin, callee.as<Function>().self, arguments);
    case Kind::kMacro:
      return call_macro(callee.as<Macro>(), std::move(arguments));
    case Kind::kJoiner: {
      auto& joiner = callee.as<Joiner>();
      return std::exchange(joiner.used, true) ? joiner.separator : string("");
    }
    case Kind::kLoop: {
      auto& loop = callee.as<Loop>();
      if (!loop.stmt.recursive) fail("the loop must have the 'recursive' marker to be called recursively");
      if (arguments.positional.size() != 1 || !arguments.named.empty()) fail("loop() takes one argument");
      return string(capture([&] { run_loop(loop.stmt, arguments.positional[0], loop.scope, loop.depth + 1); }));
    }
    case Kind::kUndefined:
      fail(callee.as<UndefinedInfo>().message);
    default:
      fail(fmt::format("'{}' object is not callable", type_name(callee)));
  }
}

Value Interpreter::call_macro(const Macro& macro, CallArguments arguments) {
  spend(8);
  const MacroDef& def = macro.def;
  const Ref<Scope> scope = new_scope(macro.scope);
  const auto take_named = [&](std::string_view name) -> std::optional<Value> {
    for (auto it = arguments.named.begin(); it != arguments.named.end(); ++it) {
      if (it->first != name) continue;
      Value value = std::move(it->second);
      arguments.named.erase(it);
      return value;
    }
    return std::nullopt;
  };

  std::vector<const MacroDef::Parameter*> missing;
  bool caller_bound = false;
  for (size_t i = 0; i < def.parameters.size(); ++i) {
    const MacroDef::Parameter& parameter = def.parameters[i];
    const std::string& name = program_.names[parameter.id];
    caller_bound |= parameter.id == program_.caller;
    std::optional<Value> value;
    if (i < arguments.positional.size()) {
      value = arguments.positional[i];
    } else {
      value = take_named(name);
    }
    if (!value) {
      value = undefined(fmt::format("parameter '{}' was not provided", name));
      if (parameter.fallback) missing.push_back(&parameter);
    }
    scope->variables.emplace_back(parameter.id, *std::move(value));
  }
  if (def.uses_caller && !caller_bound) {
    auto caller = take_named("caller");
    scope->variables.emplace_back(program_.caller, caller ? *std::move(caller) : undefined("no caller defined"));
  }
  if (def.uses_kwargs) {
    Dict kwargs;
    for (auto& [name, value] : arguments.named) kwargs.set(string(name), std::move(value));
    scope->variables.emplace_back(program_.kwargs, dict(std::move(kwargs)));
  } else if (!arguments.named.empty()) {
    fail(fmt::format("macro '{}' takes no keyword argument '{}'", def.name, arguments.named.front().first));
  }
  const size_t taken = std::min(def.parameters.size(), arguments.positional.size());
  if (def.uses_varargs) {
    const auto rest = arguments.positional.begin() + static_cast<ptrdiff_t>(taken);
    scope->variables.emplace_back(program_.varargs, tuple({rest, arguments.positional.end()}));
  } else if (arguments.positional.size() > taken) {
    fail(fmt::format("macro '{}' takes not more than {} argument(s)", def.name, def.parameters.size()));
  }

  const Ref<Scope> outer = std::exchange(scope_, scope);
  for (const auto* parameter : missing) store(parameter->id, evaluate(*parameter->fallback));
  std::string text = capture([&] { execute(def.body); });
  scope_ = outer;
  return string(std::move(text));
}

}  // namespace sluice::jinja
