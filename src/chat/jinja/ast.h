// The syntax tree of a template. Immutable after parsing; all renderings share it.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <variant>
#include <vector>

namespace sluice::jinja {

struct Builtin;
struct Expr;
struct Stmt;
using ExprPtr = std::unique_ptr<Expr>;
using Block = std::vector<Stmt>;
using NameId = uint32_t;  // index into Program::names

struct Keyword {
  std::string name;
  ExprPtr value;
};
struct Arguments {
  std::vector<ExprPtr> positional;
  std::vector<Keyword> named;
  ExprPtr star, star_star;  // *args, **kwargs; may be null
};

enum class BinaryOp : uint8_t { kAdd, kSub, kMul, kDiv, kFloorDiv, kMod, kPow };
enum class CompareOp : uint8_t { kEq, kNe, kLt, kLe, kGt, kGe, kIn, kNotIn };
enum class UnaryOp : uint8_t { kNot, kNegate, kPlus };

struct ConstantExpr {
  uint32_t index;
};  // index into Program::constants
struct NameExpr {
  NameId id;
};
struct ListExpr {
  std::vector<ExprPtr> items;
  bool tuple;
};
struct DictExpr {
  std::vector<std::pair<ExprPtr, ExprPtr>> items;
};
struct AttributeExpr {
  ExprPtr object;
  std::string name;
};
struct ItemExpr {
  ExprPtr object, key;
};
struct SliceExpr {
  ExprPtr object, start, stop, step;
};  // bounds may be null
struct CallExpr {
  ExprPtr callee;
  Arguments arguments;
};
// Null `input`: the text of the enclosing filter or set block. Null `filter`: unknown name; evaluating it is an error.
struct FilterExpr {
  ExprPtr input;
  std::string name;
  const Builtin* filter;
  Arguments arguments;
};
struct TestExpr {
  ExprPtr input;
  std::string name;
  const Builtin* test;
  Arguments arguments;
};
struct UnaryExpr {
  UnaryOp op;
  ExprPtr operand;
};
// Operators of equal precedence, applied from left to right.
struct BinaryExpr {
  ExprPtr first;
  std::vector<std::pair<BinaryOp, ExprPtr>> rest;
};
struct ConcatExpr {
  std::vector<ExprPtr> parts;
};
struct LogicExpr {
  bool all;
  std::vector<ExprPtr> operands;
};  // `all`: and; otherwise or
struct CompareExpr {
  ExprPtr first;
  std::vector<std::pair<CompareOp, ExprPtr>> rest;
};
struct ConditionalExpr {
  ExprPtr test, yes, no;
};  // `no` may be null

struct Expr {
  uint32_t line;
  uint32_t depth;  // depth of the expression, itself included
  std::variant<ConstantExpr, NameExpr, ListExpr, DictExpr, AttributeExpr, ItemExpr, SliceExpr, CallExpr, FilterExpr,
               TestExpr, UnaryExpr, BinaryExpr, ConcatExpr, LogicExpr, CompareExpr, ConditionalExpr>
      node;
};

// The target of an assignment.
struct Target;
struct NameTarget {
  NameId id;
};
struct NamespaceTarget {
  NameId id;
  std::string attribute;
};
struct TupleTarget {
  std::vector<Target> items;
};
struct Target {
  std::variant<NameTarget, NamespaceTarget, TupleTarget> node;
};

struct MacroDef {
  std::string name;  // empty for the body of a call block
  struct Parameter {
    NameId id;
    ExprPtr fallback;  // may be null
  };
  std::vector<Parameter> parameters;
  Block body;
  bool uses_caller = false, uses_varargs = false, uses_kwargs = false;
};

struct TextStmt {
  std::string text;
};
struct OutputStmt {
  ExprPtr value;
};
struct IfStmt {
  std::vector<std::pair<ExprPtr, Block>> branches;
  Block otherwise;
};
struct ForStmt {
  Target target;
  ExprPtr iterable, test;  // `test` may be null
  Block body, otherwise;
  bool recursive = false, uses_loop = false;
};
struct SetStmt {
  Target target;
  ExprPtr value;
};
struct SetBlockStmt {
  Target target;
  ExprPtr filter;
  Block body;
};  // `filter` may be null
struct MacroStmt {
  NameId id;
  std::unique_ptr<MacroDef> macro;
};
struct CallStmt {
  std::unique_ptr<MacroDef> caller;
  ExprPtr call;
};
struct FilterStmt {
  ExprPtr filter;
  Block body;
};
struct WithStmt {
  std::vector<std::pair<Target, ExprPtr>> variables;
  Block body;
};  // also the generation tag, which has no variables
struct BreakStmt {};
struct ContinueStmt {};

struct Stmt {
  uint32_t line;
  std::variant<TextStmt, OutputStmt, IfStmt, ForStmt, SetStmt, SetBlockStmt, MacroStmt, CallStmt, FilterStmt, WithStmt,
               BreakStmt, ContinueStmt>
      node;
};

using Constant = std::variant<std::nullptr_t, bool, int64_t, double, std::string>;

struct Program {
  Block body;
  std::vector<std::string> names;
  std::vector<Constant> constants;
  // Names with a special meaning.
  NameId loop, caller, varargs, kwargs;
};

}  // namespace sluice::jinja
