// Walks the syntax tree of a template: scopes, output, statements, expressions, macros and loops.
#pragma once

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "chat/jinja/ast.h"
#include "chat/jinja/ops.h"
#include "chat/jinja/runtime.h"

namespace sluice::jinja {

// The variables of a loop body, macro, with or block; lookups continue in the parent scope.
struct Scope : Mutable {
  explicit Scope(Ref<Scope> parent) : parent(std::move(parent)) {}
  void clear() override { variables.clear(); }

  Ref<Scope> parent;  // null: the template's variables
  std::vector<std::pair<NameId, Value>> variables;
};

struct Macro : Object {
  Macro(const MacroDef& def, Ref<Scope> scope) : def(def), scope(std::move(scope)) {}
  const MacroDef& def;
  const Ref<Scope> scope;
};

// The variable `loop`.
struct Loop : Mutable {
  Loop(Runtime& rt, const ForStmt& stmt, Value source, Ref<Scope> scope, int64_t depth)
      : stmt(stmt), source(std::move(source)), cursor(rt, this->source), scope(std::move(scope)), depth(depth) {}
  void clear() override;

  bool next(Value& out);
  bool peek();                  // fills `after`; returns false at the end
  int64_t length(Runtime& rt);  // runs a generator to its end

  const ForStmt& stmt;
  Value source;
  Cursor cursor;
  Ref<Scope> scope;     // scope of the for statement
  const int64_t depth;  // recursion depth, from 1
  int64_t index0 = -1;
  std::optional<Value> after;  // read from the cursor in advance
  Value current, before;
  std::optional<int64_t> counted;  // length, if known
  std::optional<Value> changed;    // last arguments of loop.changed(), as a tuple
};

class Interpreter : public Runtime {
 public:
  Interpreter(const Program& program, const RenderOptions& options);
  std::string run(const Json& variables);

  Value call(const Value& callee, CallArguments arguments) override;
  std::optional<Value> loop_attribute(const Value& loop, std::string_view name) override;

 private:
  enum class Flow { kNext, kBreak, kContinue };

  Value from_constant(const Constant& constant);
  Value from_json(const Json& json);

  // Statements.
  Flow execute(const Block& block);
  Flow execute(const Stmt& stmt);
  Flow run_if(const IfStmt& stmt);
  Flow run_for(const ForStmt& stmt);
  Flow run_loop(const ForStmt& stmt, Value iterable, Ref<Scope> outer, int64_t depth);
  Flow run_set_block(const SetBlockStmt& stmt);
  Flow run_filter(const FilterStmt& stmt);
  Flow run_with(const WithStmt& stmt);
  void run_call(const CallStmt& stmt);
  Value filtered_items(const ForStmt& stmt, Value iterable, const Ref<Scope>& outer);

  void write(std::string_view text);
  void write_value(const Value& value);
  // Returns the output of `body` as a separate text.
  template <class Body>
  std::string capture(Body&& body);
  template <class Body>
  auto in_scope(Ref<Scope> scope, Body&& body);

  // Variables.
  Ref<Scope> new_scope(const Ref<Scope>& parent) { return heap.make<Scope>(kScopeBytes, parent); }
  Value load(NameId id);
  const Value* find(NameId id) const;
  void store(NameId id, Value value);
  void assign(const Target& target, const Value& value);
  Value assigned(const Target& target);
  void check_namespaces(const Target& target);

  // Expressions.
  Value evaluate(const Expr& expr);
  Value evaluate(const ConstantExpr& node);
  Value evaluate(const NameExpr& node);
  Value evaluate(const ListExpr& node);
  Value evaluate(const DictExpr& node);
  Value evaluate(const AttributeExpr& node);
  Value evaluate(const ItemExpr& node);
  Value evaluate(const SliceExpr& node);
  Value evaluate(const CallExpr& node);
  Value evaluate(const FilterExpr& node);
  Value evaluate(const TestExpr& node);
  Value evaluate(const UnaryExpr& node);
  Value evaluate(const BinaryExpr& node);
  Value evaluate(const ConcatExpr& node);
  Value evaluate(const LogicExpr& node);
  Value evaluate(const CompareExpr& node);
  Value evaluate(const ConditionalExpr& node);
  Value evaluate_call(const CallExpr& node, const Value* caller);
  CallArguments evaluate(const Arguments& node);

  Value call_macro(const Macro& macro, CallArguments arguments);

  static constexpr size_t kScopeBytes = 128;

  const Program& program_;
  std::vector<Value> constants_;  // indexed by ConstantExpr::index
  // indexed by NameId: variables passed in or set at the template's top level
  std::vector<std::optional<Value>> globals_;
  Ref<Scope> scope_;  // null at the top level
  std::string* out_ = nullptr;
  Value filter_input_;  // text of the filter or set block that is being filtered
};

template <class Body>
std::string Interpreter::capture(Body&& body) {
  std::string text;
  std::string* const outer = std::exchange(out_, &text);
  const size_t waiting = outer->capacity();  // counts as used while other values grow
  heap.charge(waiting);
  body();
  heap.give_back(waiting);
  out_ = outer;
  return text;
}

template <class Body>
auto Interpreter::in_scope(Ref<Scope> scope, Body&& body) {
  const Ref<Scope> outer = std::exchange(scope_, std::move(scope));
  auto result = body();
  scope_ = outer;
  return result;
}

}  // namespace sluice::jinja
