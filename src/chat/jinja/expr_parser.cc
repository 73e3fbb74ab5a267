// Recursive-descent parser for the expressions of jinja2 3.1.
#include "chat/jinja/expr_parser.h"

#include <cstdlib>

#include "chat/jinja/builtin.h"

namespace sluice::jinja {

NameId ExprParser::name_id(const std::string& name) {
  const auto [entry, added] = ids_.try_emplace(name, static_cast<NameId>(program_->names.size()));
  if (added) program_->names.push_back(name);
  return entry->second;
}

uint32_t ExprParser::depth_of(const ExprPtr& expr) { return expr ? expr->depth : 0; }

uint32_t ExprParser::depth_of(const std::vector<ExprPtr>& exprs) {
  uint32_t depth = 0;
  for (const ExprPtr& expr : exprs) depth = std::max(depth, expr->depth);
  return depth;
}

uint32_t ExprParser::depth_of(const Arguments& arguments) {
  uint32_t depth = std::max({depth_of(arguments.positional), depth_of(arguments.star), depth_of(arguments.star_star)});
  for (const Keyword& keyword : arguments.named) depth = std::max(depth, keyword.value->depth);
  return depth;
}

template <class Op>
uint32_t ExprParser::depth_of(const std::vector<std::pair<Op, ExprPtr>>& rest) {
  uint32_t depth = 0;
  for (const auto& [op, expr] : rest) depth = std::max(depth, expr->depth);
  return depth;
}

template <class Node>
ExprPtr ExprParser::make(uint32_t at_line, uint32_t below, Node node) const {
  if (below >= kMaxExprDepth) syntax_error(at_line, fmt::format("expression deeper than {} levels", kMaxExprDepth));
  return std::make_unique<Expr>(Expr{at_line, below + 1, std::move(node)});
}

ExprPtr ExprParser::constant(uint32_t at_line, Constant value) {
  program_->constants.push_back(std::move(value));
  return make(at_line, 0, ConstantExpr{static_cast<uint32_t>(program_->constants.size() - 1)});
}

ExprPtr ExprParser::load_name(uint32_t at_line, const std::string& name) {
  for (MacroContext& macro : macros_) {
    macro.caller |= name == "caller" && !macro.stored_caller;
    macro.varargs |= name == "varargs" && !macro.stored_varargs;
    macro.kwargs |= name == "kwargs" && !macro.stored_kwargs;
  }
  if (name == "loop") {
    for (bool* uses_loop : loops_) *uses_loop = true;
  }
  return make(at_line, 0, NameExpr{name_id(name)});
}

NameId ExprParser::store_name(const std::string& name) {
  if (name == "true" || name == "false" || name == "none" || name == "True" || name == "False" || name == "None") {
    fail(fmt::format("can't assign to '{}'", name));
  }
  if (name == "loop" && for_depth_ > 0) fail("can't assign to the special variable 'loop' inside a for loop");
  for (MacroContext& macro : macros_) {
    macro.stored_caller |= name == "caller" && !macro.caller;
    macro.stored_varargs |= name == "varargs" && !macro.varargs;
    macro.stored_kwargs |= name == "kwargs" && !macro.kwargs;
  }
  return name_id(name);
}

ExprPtr ExprParser::parse_tuple(bool with_conditional, std::string_view end_name, bool in_parentheses) {
  const uint32_t at_line = line();
  std::vector<ExprPtr> items;
  bool is_tuple = false;
  while (true) {
    if (!items.empty()) expect_op(",");
    if (is(TokenKind::kOutputEnd) || is(TokenKind::kBlockEnd) || is_op(")") ||
        (!end_name.empty() && is_name(end_name))) {
      break;
    }
    items.push_back(with_conditional ? parse_expression() : parse_or());
    if (!is_op(",")) break;
    is_tuple = true;
  }
  if (!is_tuple && !items.empty()) return std::move(items.front());
  if (!is_tuple && !in_parentheses) fail(fmt::format("expected an expression, got {}", describe(token())));
  const uint32_t depth = depth_of(items);
  return make(at_line, depth, ListExpr{std::move(items), /*tuple=*/true});
}

ExprPtr ExprParser::parse_expression() {
  const Nesting nesting(*this);
  uint32_t at_line = line();
  const size_t unknown_before = unknown_.size();
  ExprPtr value = parse_or();
  while (skip_name("if")) {
    ExprPtr test = parse_or();
    ExprPtr otherwise;
    if (skip_name("else")) otherwise = parse_expression();
    unknown_.resize(unknown_before);  // the unknown name may be in a branch that is never taken
    const uint32_t depth = std::max({depth_of(value), depth_of(test), depth_of(otherwise)});
    value = make(at_line, depth, ConditionalExpr{std::move(test), std::move(value), std::move(otherwise)});
    at_line = line();
  }
  return value;
}

template <class Next>
ExprPtr ExprParser::parse_logic(std::string_view word, bool all, Next&& parse_next) {
  const uint32_t at_line = line();
  ExprPtr first = parse_next();
  if (!is_name(word)) return first;
  std::vector<ExprPtr> operands;
  operands.push_back(std::move(first));
  while (skip_name(word)) operands.push_back(parse_next());
  const uint32_t depth = depth_of(operands);
  return make(at_line, depth, LogicExpr{all, std::move(operands)});
}

ExprPtr ExprParser::parse_or() {
  return parse_logic("or", false, [this] { return parse_logic("and", true, [this] { return parse_not(); }); });
}

ExprPtr ExprParser::parse_not() {
  if (!is_name("not")) return parse_compare();
  const Nesting nesting(*this);
  const uint32_t at_line = take().line;
  ExprPtr operand = parse_not();
  const uint32_t depth = operand->depth;
  return make(at_line, depth, UnaryExpr{UnaryOp::kNot, std::move(operand)});
}

std::optional<CompareOp> ExprParser::take_compare_op() {
  constexpr std::pair<std::string_view, CompareOp> kOps[] = {{"==", CompareOp::kEq}, {"!=", CompareOp::kNe},
                                                             {"<", CompareOp::kLt},  {"<=", CompareOp::kLe},
                                                             {">", CompareOp::kGt},  {">=", CompareOp::kGe}};
  for (const auto& [text, op] : kOps) {
    if (skip_op(text)) return op;
  }
  if (skip_name("in")) return CompareOp::kIn;
  if (is_name("not") && look().kind == TokenKind::kName && look().text == "in") {
    take();
    take();
    return CompareOp::kNotIn;
  }
  return std::nullopt;
}

ExprPtr ExprParser::parse_compare() {
  const uint32_t at_line = line();
  ExprPtr first = parse_sum();
  std::vector<std::pair<CompareOp, ExprPtr>> rest;
  while (const auto op = take_compare_op()) rest.emplace_back(*op, parse_sum());
  if (rest.empty()) return first;
  const uint32_t depth = std::max(first->depth, depth_of(rest));
  return make(at_line, depth, CompareExpr{std::move(first), std::move(rest)});
}

template <class Next>
ExprPtr ExprParser::parse_binary(std::initializer_list<std::pair<std::string_view, BinaryOp>> ops, Next&& parse_next) {
  const uint32_t at_line = line();
  ExprPtr first = parse_next();
  std::vector<std::pair<BinaryOp, ExprPtr>> rest;
  const auto take_op = [&]() -> std::optional<BinaryOp> {
    for (const auto& [text, op] : ops) {
      if (skip_op(text)) return op;
    }
    return std::nullopt;
  };
  while (const auto op = take_op()) rest.emplace_back(*op, parse_next());
  if (rest.empty()) return first;
  const uint32_t depth = std::max(first->depth, depth_of(rest));
  return make(at_line, depth, BinaryExpr{std::move(first), std::move(rest)});
}

ExprPtr ExprParser::parse_sum() {
  return parse_binary({{"+", BinaryOp::kAdd}, {"-", BinaryOp::kSub}}, [this] { return parse_concat(); });
}

ExprPtr ExprParser::parse_concat() {
  const uint32_t at_line = line();
  ExprPtr first = parse_product();
  if (!is_op("~")) return first;
  std::vector<ExprPtr> parts;
  parts.push_back(std::move(first));
  while (skip_op("~")) parts.push_back(parse_product());
  const uint32_t depth = depth_of(parts);
  return make(at_line, depth, ConcatExpr{std::move(parts)});
}

ExprPtr ExprParser::parse_product() {
  return parse_binary(
      {{"*", BinaryOp::kMul}, {"/", BinaryOp::kDiv}, {"//", BinaryOp::kFloorDiv}, {"%", BinaryOp::kMod}},
      [this] { return parse_power(); });
}

ExprPtr ExprParser::parse_power() {
  return parse_binary({{"**", BinaryOp::kPow}}, [this] { return parse_unary(/*with_filter=*/true); });
}

ExprPtr ExprParser::parse_unary(bool with_filter) {
  const uint32_t at_line = line();
  ExprPtr value;
  if (is_op("-") || is_op("+")) {
    const Nesting nesting(*this);
    const UnaryOp op = take().text == "-" ? UnaryOp::kNegate : UnaryOp::kPlus;
    ExprPtr operand = parse_unary(/*with_filter=*/false);
    const uint32_t depth = operand->depth;
    value = make(at_line, depth, UnaryExpr{op, std::move(operand)});
  } else {
    value = parse_primary();
  }
  value = parse_postfix(std::move(value));
  return with_filter ? parse_filter_expr(std::move(value)) : std::move(value);
}

ExprPtr ExprParser::parse_primary() {
  const uint32_t at_line = line();
  switch (token().kind) {
    case TokenKind::kName: {
      const std::string name = take().text;
      if (name == "true" || name == "True") return constant(at_line, true);
      if (name == "false" || name == "False") return constant(at_line, false);
      if (name == "none" || name == "None") return constant(at_line, nullptr);
      return load_name(at_line, name);
    }
    case TokenKind::kString: {
      std::string text = take().text;
      while (is(TokenKind::kString)) text += take().text;
      return constant(at_line, std::move(text));
    }
    case TokenKind::kInteger:
      return constant(at_line, static_cast<int64_t>(std::stoll(take().text)));
    case TokenKind::kFloat:
      return constant(at_line, std::strtod(take().text.c_str(), nullptr));
    default:
      break;
  }
  if (skip_op("(")) {
    ExprPtr value = parse_tuple(/*with_conditional=*/true, "", /*in_parentheses=*/true);
    expect_op(")");
    return value;
  }
  if (skip_op("[")) return parse_list(at_line);
  if (skip_op("{")) return parse_dict(at_line);
  fail(fmt::format("unexpected {}", describe(token())));
}

ExprPtr ExprParser::parse_list(uint32_t at_line) {
  std::vector<ExprPtr> items;
  while (!is_op("]")) {
    if (!items.empty()) expect_op(",");
    if (is_op("]")) break;
    items.push_back(parse_expression());
  }
  expect_op("]");
  const uint32_t depth = depth_of(items);
  return make(at_line, depth, ListExpr{std::move(items), /*tuple=*/false});
}

ExprPtr ExprParser::parse_dict(uint32_t at_line) {
  std::vector<std::pair<ExprPtr, ExprPtr>> items;
  uint32_t depth = 0;
  while (!is_op("}")) {
    if (!items.empty()) expect_op(",");
    if (is_op("}")) break;
    ExprPtr key = parse_expression();
    expect_op(":");
    ExprPtr value = parse_expression();
    depth = std::max({depth, key->depth, value->depth});
    items.emplace_back(std::move(key), std::move(value));
  }
  expect_op("}");
  return make(at_line, depth, DictExpr{std::move(items)});
}

ExprPtr ExprParser::parse_postfix(ExprPtr value) {
  while (true) {
    if (is_op(".")) {
      value = parse_attribute(std::move(value));
    } else if (is_op("[")) {
      value = parse_subscript(std::move(value));
    } else if (is_op("(")) {
      value = parse_call(std::move(value));
    } else {
      return value;
    }
  }
}

ExprPtr ExprParser::parse_attribute(ExprPtr object) {
  const uint32_t at_line = take().line;
  const uint32_t depth = object->depth;
  if (is(TokenKind::kName)) return make(at_line, depth, AttributeExpr{std::move(object), take().text});
  if (!is(TokenKind::kInteger)) fail("expected name or number");
  ExprPtr key = constant(at_line, static_cast<int64_t>(std::stoll(take().text)));
  return make(at_line, depth, ItemExpr{std::move(object), std::move(key)});
}

ExprPtr ExprParser::parse_subscript(ExprPtr object) {
  const uint32_t at_line = take().line;
  std::vector<ExprPtr> keys;
  while (!is_op("]")) {
    if (!keys.empty()) expect_op(",");
    ExprPtr start;
    if (!is_op(":")) start = parse_expression();
    if (!is_op(":")) {
      keys.push_back(std::move(start));
      continue;
    }
    return parse_slice(at_line, std::move(object), std::move(start), !keys.empty());
  }
  expect_op("]");
  const uint32_t depth = std::max(object->depth, depth_of(keys));
  if (keys.size() == 1) return make(at_line, depth, ItemExpr{std::move(object), std::move(keys.front())});
  ExprPtr key = make(at_line, depth, ListExpr{std::move(keys), /*tuple=*/true});
  return make(at_line, depth + 1, ItemExpr{std::move(object), std::move(key)});
}

ExprPtr ExprParser::parse_slice(uint32_t at_line, ExprPtr object, ExprPtr start, bool in_tuple) {
  SliceExpr slice{std::move(object), std::move(start), nullptr, nullptr};
  expect_op(":");
  const auto bound_follows = [&] { return !is_op(":") && !is_op("]") && !is_op(","); };
  if (bound_follows()) slice.stop = parse_expression();
  if (skip_op(":") && bound_follows()) slice.step = parse_expression();
  if (in_tuple || is_op(",")) fail("a slice cannot be part of a tuple");
  expect_op("]");
  const uint32_t depth =
      std::max({depth_of(slice.object), depth_of(slice.start), depth_of(slice.stop), depth_of(slice.step)});
  return make(at_line, depth, std::move(slice));
}

Arguments ExprParser::parse_arguments() {
  Arguments out;
  const auto ensure = [this](bool ok) {
    if (!ok) fail("invalid order of arguments");
  };
  expect_op("(");
  bool first = true;
  while (!is_op(")")) {
    if (!first) {
      expect_op(",");
      if (is_op(")")) break;
    }
    first = false;
    if (skip_op("*")) {
      ensure(!out.star && !out.star_star);
      out.star = parse_expression();
    } else if (skip_op("**")) {
      ensure(!out.star_star);
      out.star_star = parse_expression();
    } else if (is(TokenKind::kName) && look().kind == TokenKind::kOperator && look().text == "=") {
      ensure(!out.star_star);
      std::string name = take().text;
      take();
      const bool twice =
          std::any_of(out.named.begin(), out.named.end(), [&](const Keyword& k) { return k.name == name; });
      if (twice) fail(fmt::format("argument '{}' given twice", name));
      out.named.push_back({std::move(name), parse_expression()});
    } else {
      ensure(!out.star && !out.star_star && out.named.empty());
      out.positional.push_back(parse_expression());
    }
  }
  expect_op(")");
  return out;
}

ExprPtr ExprParser::parse_call(ExprPtr callee) {
  const uint32_t at_line = line();
  Arguments arguments = parse_arguments();
  const uint32_t depth = std::max(callee->depth, depth_of(arguments));
  return make(at_line, depth, CallExpr{std::move(callee), std::move(arguments)});
}

ExprPtr ExprParser::parse_filter_expr(ExprPtr value) {
  while (true) {
    if (is_op("|")) {
      value = parse_filters(std::move(value));
    } else if (is_name("is")) {
      value = parse_test(std::move(value));
    } else if (is_op("(")) {
      value = parse_call(std::move(value));
    } else {
      return value;
    }
  }
}

std::string ExprParser::parse_dotted_name() {
  std::string name = expect_name();
  while (skip_op(".")) name = fmt::format("{}.{}", name, expect_name());
  return name;
}

void ExprParser::note_unknown(const Builtin* found, std::string_view what, const std::string& name, uint32_t at_line) {
  if (!found && soft_ == 0) unknown_.push_back({at_line, fmt::format("no {} named '{}'", what, name)});
}

ExprPtr ExprParser::parse_filters(ExprPtr value) {
  while (skip_op("|")) value = parse_filter(std::move(value));
  return value;
}

ExprPtr ExprParser::parse_filter(ExprPtr value) {
  const uint32_t at_line = line();
  std::string name = parse_dotted_name();
  const Builtin* filter = find_filter(name);
  note_unknown(filter, "filter", name, at_line);
  Arguments arguments;
  if (is_op("(")) arguments = parse_arguments();
  const uint32_t depth = std::max(depth_of(value), depth_of(arguments));
  return make(at_line, depth, FilterExpr{std::move(value), std::move(name), filter, std::move(arguments)});
}

bool ExprParser::bare_argument_follows() const {
  switch (token().kind) {
    case TokenKind::kName:
      return !is_name("else") && !is_name("or") && !is_name("and");
    case TokenKind::kString:
    case TokenKind::kInteger:
    case TokenKind::kFloat:
      return true;
    default:
      return is_op("[") || is_op("{");
  }
}

ExprPtr ExprParser::parse_test(ExprPtr value) {
  const uint32_t at_line = take().line;
  const bool negated = skip_name("not");
  std::string name = parse_dotted_name();
  const Builtin* test = find_test(name);
  note_unknown(test, "test", name, at_line);
  Arguments arguments;
  if (is_op("(")) {
    arguments = parse_arguments();
  } else if (bare_argument_follows()) {
    if (is_name("is")) fail("tests cannot be chained with 'is'");
    arguments.positional.push_back(parse_postfix(parse_primary()));
  }
  const uint32_t depth = std::max(depth_of(value), depth_of(arguments));
  ExprPtr node = make(at_line, depth, TestExpr{std::move(value), std::move(name), test, std::move(arguments)});
  if (!negated) return node;
  return make(at_line, depth + 1, UnaryExpr{UnaryOp::kNot, std::move(node)});
}

}  // namespace sluice::jinja
