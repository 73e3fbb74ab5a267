// Recursive descent over the grammar of jinja2 3.1, with the tags of loop controls and generation.
#include "chat/jinja_parser.h"

#include <fmt/core.h>

#include <algorithm>
#include <initializer_list>
#include <unordered_map>

#include "chat/jinja_builtin.h"
#include "chat/jinja_lexer.h"

namespace sluice::jinja {
namespace {

class Parser {
 public:
  explicit Parser(std::string_view source) : tokens_(tokenize(source)), program_(std::make_unique<Program>()) {
    program_->loop = name_id("loop");
    program_->caller = name_id("caller");
    program_->varargs = name_id("varargs");
    program_->kwargs = name_id("kwargs");
  }

  std::unique_ptr<Program> run() {
    parse_until(program_->body, {});
    if (!unknown_.empty()) syntax_error(unknown_.front().line, unknown_.front().message);
    return std::move(program_);
  }

 private:
  // What the body of a macro mentions of the variables that it gets only when it mentions them.
  struct MacroContext {
    bool caller = false, varargs = false, kwargs = false;
    bool stored_caller = false, stored_varargs = false, stored_kwargs = false;
  };
  struct Unknown {
    uint32_t line;
    std::string message;
  };

  // --- tokens

  const Token& token() const { return tokens_[at_]; }
  const Token& look() const { return tokens_[std::min(at_ + 1, tokens_.size() - 1)]; }
  uint32_t line() const { return token().line; }
  bool is(TokenKind kind) const { return token().kind == kind; }
  bool is_op(std::string_view op) const { return is(TokenKind::kOperator) && token().text == op; }
  bool is_name(std::string_view name) const { return is(TokenKind::kName) && token().text == name; }

  const Token& take() {
    const Token& current = tokens_[at_];
    if (at_ + 1 < tokens_.size()) ++at_;
    return current;
  }
  bool skip_op(std::string_view op) { return is_op(op) && (take(), true); }
  bool skip_name(std::string_view name) { return is_name(name) && (take(), true); }

  [[noreturn]] void fail(const std::string& message) const { syntax_error(line(), message); }

  static std::string describe(const Token& token) {
    switch (token.kind) {
      case TokenKind::kText: return "template text";
      case TokenKind::kOutputBegin: return "begin of print statement";
      case TokenKind::kOutputEnd: return "end of print statement";
      case TokenKind::kBlockBegin: return "begin of statement block";
      case TokenKind::kBlockEnd: return "end of statement block";
      case TokenKind::kEnd: return "end of template";
      default: return fmt::format("'{}'", token.text.substr(0, 60));
    }
  }

  [[noreturn]] void fail_expected(std::string_view what) const {
    fail(fmt::format("expected {}, got {}", what, describe(token())));
  }
  void expect_op(std::string_view op) {
    if (!skip_op(op)) fail_expected(fmt::format("'{}'", op));
  }
  void expect(TokenKind kind, std::string_view what) {
    if (!is(kind)) fail_expected(what);
    take();
  }
  std::string expect_name() {
    if (!is(TokenKind::kName)) fail_expected("a name");
    return take().text;
  }

  class Nesting {
   public:
    explicit Nesting(Parser& parser) : parser_(parser) {
      if (++parser_.nesting_ > kMaxNesting) parser_.fail(fmt::format("nested deeper than {} levels", kMaxNesting));
    }
    ~Nesting() { --parser_.nesting_; }

   private:
    Parser& parser_;
  };

  // --- nodes

  NameId name_id(const std::string& name) {
    const auto [entry, added] = ids_.try_emplace(name, static_cast<NameId>(program_->names.size()));
    if (added) program_->names.push_back(name);
    return entry->second;
  }

  static uint32_t depth_of(const ExprPtr& expr) { return expr ? expr->depth : 0; }
  static uint32_t depth_of(const std::vector<ExprPtr>& exprs) {
    uint32_t depth = 0;
    for (const ExprPtr& expr : exprs) depth = std::max(depth, expr->depth);
    return depth;
  }
  static uint32_t depth_of(const Arguments& arguments) {
    uint32_t depth = std::max({depth_of(arguments.positional), depth_of(arguments.star), depth_of(arguments.star_star)});
    for (const Keyword& keyword : arguments.named) depth = std::max(depth, keyword.value->depth);
    return depth;
  }
  template <class Op>
  static uint32_t depth_of(const std::vector<std::pair<Op, ExprPtr>>& rest) {
    uint32_t depth = 0;
    for (const auto& [op, expr] : rest) depth = std::max(depth, expr->depth);
    return depth;
  }

  // `below`: depth of the deepest operand.
  template <class Node>
  ExprPtr make(uint32_t at_line, uint32_t below, Node node) const {
    if (below >= kMaxExprDepth) syntax_error(at_line, fmt::format("expression deeper than {} levels", kMaxExprDepth));
    return std::make_unique<Expr>(Expr{at_line, below + 1, std::move(node)});
  }

  ExprPtr constant(uint32_t at_line, Constant value) {
    program_->constants.push_back(std::move(value));
    return make(at_line, 0, ConstantExpr{static_cast<uint32_t>(program_->constants.size() - 1)});
  }

  ExprPtr load_name(uint32_t at_line, const std::string& name) {
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

  NameId store_name(const std::string& name) {
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

  // --- statements

  // Statements up to a tag named in `ends`, whose name is taken and returned; the template's end when there are none.
  std::string parse_until(Block& body, std::initializer_list<std::string_view> ends) {
    const Nesting nesting(*this);
    while (true) {
      const uint32_t at_line = line();
      switch (token().kind) {
        case TokenKind::kText: body.push_back({at_line, TextStmt{take().text}}); break;
        case TokenKind::kOutputBegin: {
          take();
          body.push_back({at_line, OutputStmt{parse_tuple()}});
          expect(TokenKind::kOutputEnd, "end of print statement");
          break;
        }
        case TokenKind::kBlockBegin: {
          take();
          if (!is(TokenKind::kName)) fail("tag name expected");
          for (const std::string_view end : ends) {
            if (is_name(end)) return take().text;
          }
          parse_statement(body, at_line, ends);
          expect(TokenKind::kBlockEnd, "end of statement block");
          break;
        }
        default:
          if (ends.size() != 0) fail(fmt::format("unexpected end of template, expected {}", join(ends)));
          return "";
      }
    }
  }

  static std::string join(std::initializer_list<std::string_view> names) {
    std::string out;
    for (const std::string_view name : names) out += fmt::format("{}'{}'", out.empty() ? "" : " or ", name);
    return out;
  }

  // The rest of a tag and its body.
  std::string parse_body(Block& body, std::initializer_list<std::string_view> ends) {
    skip_op(":");
    expect(TokenKind::kBlockEnd, "end of statement block");
    return parse_until(body, ends);
  }

  void parse_statement(Block& body, uint32_t at_line, std::initializer_list<std::string_view> ends) {
    const std::string tag = take().text;
    if (tag == "for") return body.push_back({at_line, parse_for()});
    if (tag == "if") return body.push_back({at_line, parse_if()});
    if (tag == "set") return parse_set(body, at_line);
    if (tag == "macro") return body.push_back({at_line, parse_macro()});
    if (tag == "call") return body.push_back({at_line, parse_call_block()});
    if (tag == "filter") return body.push_back({at_line, parse_filter_block()});
    if (tag == "with") return body.push_back({at_line, parse_with()});
    if (tag == "generation") return body.push_back({at_line, parse_generation()});
    if (tag == "print") return parse_print(body, at_line);
    if (tag == "break" || tag == "continue") {
      if (breakable_ == 0) fail(fmt::format("'{}' outside of a loop", tag));
      if (tag == "break") return body.push_back({at_line, BreakStmt{}});
      return body.push_back({at_line, ContinueStmt{}});
    }
    constexpr std::string_view kUnsupported[] = {"import", "from", "include", "extends", "block", "autoescape"};
    if (std::find(std::begin(kUnsupported), std::end(kUnsupported), tag) != std::end(kUnsupported)) {
      syntax_error(at_line, fmt::format("the tag '{}' is not supported in chat templates", tag));
    }
    syntax_error(at_line, ends.size() == 0 ? fmt::format("unknown tag '{}'", tag)
                                           : fmt::format("unknown tag '{}', looking for {}", tag, join(ends)));
  }

  ForStmt parse_for() {
    ForStmt stmt;
    ++for_depth_;
    stmt.target = parse_target(/*with_tuple=*/true, /*with_namespace=*/false, "in");
    if (!skip_name("in")) fail_expected("'in'");
    stmt.iterable = parse_tuple(/*with_conditional=*/false, "recursive");
    if (skip_name("if")) stmt.test = parse_expression();
    stmt.recursive = skip_name("recursive");
    loops_.push_back(&stmt.uses_loop);
    ++breakable_;
    const std::string end = parse_body(stmt.body, {"endfor", "else"});
    --breakable_;
    loops_.pop_back();
    if (end == "else") {
      const int outer = breakable_;
      if (stmt.recursive) breakable_ = 0;
      parse_body(stmt.otherwise, {"endfor"});
      breakable_ = outer;
    }
    stmt.uses_loop |= stmt.recursive;
    --for_depth_;
    return stmt;
  }

  IfStmt parse_if() {
    IfStmt stmt;
    ++soft_;  // an unknown filter may stand in a branch that is not taken
    std::string end;
    do {
      ExprPtr test = parse_tuple(/*with_conditional=*/false);
      stmt.branches.emplace_back(std::move(test), Block{});
      end = parse_body(stmt.branches.back().second, {"elif", "else", "endif"});
    } while (end == "elif");
    if (end == "else") parse_body(stmt.otherwise, {"endif"});
    --soft_;
    return stmt;
  }

  void parse_set(Block& body, uint32_t at_line) {
    Target target = parse_target(/*with_tuple=*/true, /*with_namespace=*/true, "");
    if (skip_op("=")) {
      body.push_back({at_line, SetStmt{std::move(target), parse_tuple()}});
      return;
    }
    ExprPtr filter = parse_filters(nullptr);
    Block inner;
    parse_body(inner, {"endset"});
    body.push_back({at_line, SetBlockStmt{std::move(target), std::move(filter), std::move(inner)}});
  }

  void parse_parameters(MacroDef& macro) {
    expect_op("(");
    while (!is_op(")")) {
      if (!macro.parameters.empty()) expect_op(",");
      const NameId id = store_name(expect_name());
      const bool twice = std::any_of(macro.parameters.begin(), macro.parameters.end(), [&](const auto& p) { return p.id == id; });
      if (twice) fail(fmt::format("parameter '{}' given twice", program_->names[id]));
      ExprPtr fallback;
      if (skip_op("=")) {
        fallback = parse_expression();
      } else if (!macro.parameters.empty() && macro.parameters.back().fallback) {
        fail("parameter without default after one with default");
      }
      macro.parameters.push_back({id, std::move(fallback)});
    }
    expect_op(")");
  }

  void parse_macro_body(MacroDef& macro, std::string_view end) {
    macros_.emplace_back();
    const int breakable = std::exchange(breakable_, 0);
    const int soft = std::exchange(soft_, 0);
    parse_body(macro.body, {end});
    breakable_ = breakable;
    soft_ = soft;
    const MacroContext context = macros_.back();
    macros_.pop_back();
    const auto* parameter = [&](NameId id) -> const MacroDef::Parameter* {
      for (const auto& p : macro.parameters) {
        if (p.id == id) return &p;
      }
      return nullptr;
    }(program_->caller);
    if (context.caller && parameter && !parameter->fallback) {
      fail("the parameter 'caller' of a macro must be left out or have a default");
    }
    const auto declared = [&](NameId id) {
      return std::any_of(macro.parameters.begin(), macro.parameters.end(), [&](const auto& p) { return p.id == id; });
    };
    macro.uses_caller = context.caller;
    macro.uses_varargs = context.varargs && !declared(program_->varargs);
    macro.uses_kwargs = context.kwargs && !declared(program_->kwargs);
  }

  MacroStmt parse_macro() {
    MacroStmt stmt;
    stmt.macro = std::make_unique<MacroDef>();
    stmt.macro->name = expect_name();
    stmt.id = store_name(stmt.macro->name);
    parse_parameters(*stmt.macro);
    parse_macro_body(*stmt.macro, "endmacro");
    return stmt;
  }

  CallStmt parse_call_block() {
    CallStmt stmt;
    stmt.caller = std::make_unique<MacroDef>();
    if (is_op("(")) parse_parameters(*stmt.caller);
    stmt.call = parse_expression();
    if (!std::holds_alternative<CallExpr>(stmt.call->node)) fail("expected a call");
    parse_macro_body(*stmt.caller, "endcall");
    return stmt;
  }

  FilterStmt parse_filter_block() {
    FilterStmt stmt;
    stmt.filter = parse_filters(parse_filter(nullptr));
    parse_body(stmt.body, {"endfilter"});
    return stmt;
  }

  WithStmt parse_with() {
    WithStmt stmt;
    while (!is(TokenKind::kBlockEnd)) {
      if (!stmt.variables.empty()) expect_op(",");
      Target target = parse_target(/*with_tuple=*/true, /*with_namespace=*/false, "");
      expect_op("=");
      stmt.variables.emplace_back(std::move(target), parse_expression());
    }
    parse_body(stmt.body, {"endwith"});
    return stmt;
  }

  // Marks the assistant's tokens for training; for rendering it is a scope.
  WithStmt parse_generation() {
    WithStmt stmt;
    const int breakable = std::exchange(breakable_, 0);
    parse_body(stmt.body, {"endgeneration"});
    breakable_ = breakable;
    return stmt;
  }

  void parse_print(Block& body, uint32_t at_line) {
    bool first = true;
    while (!is(TokenKind::kBlockEnd)) {
      if (!first) expect_op(",");
      first = false;
      body.push_back({at_line, OutputStmt{parse_expression()}});
    }
  }

  // --- assignment targets

  Target parse_target(bool with_tuple, bool with_namespace, std::string_view end_name) {
    const Nesting nesting(*this);
    std::vector<Target> items;
    bool is_tuple = false;
    while (true) {
      if (!items.empty()) expect_op(",");
      if (is(TokenKind::kOutputEnd) || is(TokenKind::kBlockEnd) || is_op(")") ||
          (!end_name.empty() && is_name(end_name))) {
        break;
      }
      items.push_back(parse_single_target(with_namespace));
      if (!with_tuple || !is_op(",")) break;
      is_tuple = true;
    }
    if (!is_tuple && items.size() == 1) return std::move(items.front());
    if (!is_tuple) fail_expected("a variable to assign to");
    return Target{TupleTarget{std::move(items)}};
  }

  Target parse_single_target(bool with_namespace) {
    if (skip_op("(")) {
      if (skip_op(")")) return Target{TupleTarget{}};
      Target inner = parse_target(/*with_tuple=*/true, /*with_namespace=*/false, "");
      expect_op(")");
      return inner;
    }
    if (!is(TokenKind::kName)) fail(fmt::format("can't assign to {}", describe(token())));
    const std::string name = take().text;
    if (with_namespace && skip_op(".")) {
      std::string attribute = expect_name();
      return Target{NamespaceTarget{name_id(name), std::move(attribute)}};
    }
    return Target{NameTarget{store_name(name)}};
  }

  // --- expressions

  // Expressions separated by commas make a tuple.
  ExprPtr parse_tuple(bool with_conditional = true, std::string_view end_name = "", bool in_parentheses = false) {
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

  ExprPtr parse_expression() {
    const Nesting nesting(*this);
    uint32_t at_line = line();
    const size_t unknown_before = unknown_.size();
    ExprPtr value = parse_or();
    while (skip_name("if")) {
      ExprPtr test = parse_or();
      ExprPtr otherwise;
      if (skip_name("else")) otherwise = parse_expression();
      unknown_.resize(unknown_before);  // may stand in a branch that is not taken
      const uint32_t depth = std::max({depth_of(value), depth_of(test), depth_of(otherwise)});
      value = make(at_line, depth, ConditionalExpr{std::move(test), std::move(value), std::move(otherwise)});
      at_line = line();
    }
    return value;
  }

  template <class Next>
  ExprPtr parse_logic(std::string_view word, bool all, Next&& parse_next) {
    const uint32_t at_line = line();
    ExprPtr first = parse_next();
    if (!is_name(word)) return first;
    std::vector<ExprPtr> operands;
    operands.push_back(std::move(first));
    while (skip_name(word)) operands.push_back(parse_next());
    const uint32_t depth = depth_of(operands);
    return make(at_line, depth, LogicExpr{all, std::move(operands)});
  }

  ExprPtr parse_or() {
    return parse_logic("or", false, [this] { return parse_logic("and", true, [this] { return parse_not(); }); });
  }

  ExprPtr parse_not() {
    if (!is_name("not")) return parse_compare();
    const Nesting nesting(*this);
    const uint32_t at_line = take().line;
    ExprPtr operand = parse_not();
    const uint32_t depth = operand->depth;
    return make(at_line, depth, UnaryExpr{UnaryOp::kNot, std::move(operand)});
  }

  std::optional<CompareOp> take_compare_op() {
    constexpr std::pair<std::string_view, CompareOp> kOps[] = {
        {"==", CompareOp::kEq}, {"!=", CompareOp::kNe}, {"<", CompareOp::kLt},
        {"<=", CompareOp::kLe}, {">", CompareOp::kGt},  {">=", CompareOp::kGe}};
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

  ExprPtr parse_compare() {
    const uint32_t at_line = line();
    ExprPtr first = parse_sum();
    std::vector<std::pair<CompareOp, ExprPtr>> rest;
    while (const auto op = take_compare_op()) rest.emplace_back(*op, parse_sum());
    if (rest.empty()) return first;
    const uint32_t depth = std::max(first->depth, depth_of(rest));
    return make(at_line, depth, CompareExpr{std::move(first), std::move(rest)});
  }

  template <class Next>
  ExprPtr parse_binary(std::initializer_list<std::pair<std::string_view, BinaryOp>> ops, Next&& parse_next) {
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

  ExprPtr parse_sum() {
    return parse_binary({{"+", BinaryOp::kAdd}, {"-", BinaryOp::kSub}}, [this] { return parse_concat(); });
  }

  ExprPtr parse_concat() {
    const uint32_t at_line = line();
    ExprPtr first = parse_product();
    if (!is_op("~")) return first;
    std::vector<ExprPtr> parts;
    parts.push_back(std::move(first));
    while (skip_op("~")) parts.push_back(parse_product());
    const uint32_t depth = depth_of(parts);
    return make(at_line, depth, ConcatExpr{std::move(parts)});
  }

  ExprPtr parse_product() {
    return parse_binary({{"*", BinaryOp::kMul}, {"/", BinaryOp::kDiv}, {"//", BinaryOp::kFloorDiv}, {"%", BinaryOp::kMod}},
                        [this] { return parse_power(); });
  }

  ExprPtr parse_power() {
    return parse_binary({{"**", BinaryOp::kPow}}, [this] { return parse_unary(/*with_filter=*/true); });
  }

  ExprPtr parse_unary(bool with_filter) {
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

  ExprPtr parse_primary() {
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
      case TokenKind::kInteger: return constant(at_line, static_cast<int64_t>(std::stoll(take().text)));
      case TokenKind::kFloat: return constant(at_line, std::strtod(take().text.c_str(), nullptr));
      default: break;
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

  ExprPtr parse_list(uint32_t at_line) {
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

  ExprPtr parse_dict(uint32_t at_line) {
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

  ExprPtr parse_postfix(ExprPtr value) {
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

  ExprPtr parse_attribute(ExprPtr object) {
    const uint32_t at_line = take().line;
    const uint32_t depth = object->depth;
    if (is(TokenKind::kName)) return make(at_line, depth, AttributeExpr{std::move(object), take().text});
    if (!is(TokenKind::kInteger)) fail("expected name or number");
    ExprPtr key = constant(at_line, static_cast<int64_t>(std::stoll(take().text)));
    return make(at_line, depth, ItemExpr{std::move(object), std::move(key)});
  }

  ExprPtr parse_subscript(ExprPtr object) {
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

  ExprPtr parse_slice(uint32_t at_line, ExprPtr object, ExprPtr start, bool in_tuple) {
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

  Arguments parse_arguments() {
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
        const bool twice = std::any_of(out.named.begin(), out.named.end(), [&](const Keyword& k) { return k.name == name; });
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

  ExprPtr parse_call(ExprPtr callee) {
    const uint32_t at_line = line();
    Arguments arguments = parse_arguments();
    const uint32_t depth = std::max(callee->depth, depth_of(arguments));
    return make(at_line, depth, CallExpr{std::move(callee), std::move(arguments)});
  }

  ExprPtr parse_filter_expr(ExprPtr value) {
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

  std::string parse_dotted_name() {
    std::string name = expect_name();
    while (skip_op(".")) name = fmt::format("{}.{}", name, expect_name());
    return name;
  }

  void note_unknown(const Builtin* found, std::string_view what, const std::string& name, uint32_t at_line) {
    if (!found && soft_ == 0) unknown_.push_back({at_line, fmt::format("no {} named '{}'", what, name)});
  }

  ExprPtr parse_filters(ExprPtr value) {
    while (skip_op("|")) value = parse_filter(std::move(value));
    return value;
  }

  ExprPtr parse_filter(ExprPtr value) {
    const uint32_t at_line = line();
    std::string name = parse_dotted_name();
    const Builtin* filter = find_filter(name);
    note_unknown(filter, "filter", name, at_line);
    Arguments arguments;
    if (is_op("(")) arguments = parse_arguments();
    const uint32_t depth = std::max(depth_of(value), depth_of(arguments));
    return make(at_line, depth, FilterExpr{std::move(value), std::move(name), filter, std::move(arguments)});
  }

  // A test's single argument may stand without parentheses.
  bool bare_argument_follows() const {
    switch (token().kind) {
      case TokenKind::kName: return !is_name("else") && !is_name("or") && !is_name("and");
      case TokenKind::kString:
      case TokenKind::kInteger:
      case TokenKind::kFloat: return true;
      default: return is_op("[") || is_op("{");
    }
  }

  ExprPtr parse_test(ExprPtr value) {
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

  const std::vector<Token> tokens_;
  size_t at_ = 0;
  std::unique_ptr<Program> program_;
  std::unordered_map<std::string, NameId> ids_;
  int nesting_ = 0;
  int for_depth_ = 0;   // for statements around
  int breakable_ = 0;   // loops that break and continue would end
  int soft_ = 0;        // if statements around
  std::vector<MacroContext> macros_;
  std::vector<bool*> loops_;  // ForStmt::uses_loop of the bodies around
  std::vector<Unknown> unknown_;
};

}  // namespace

std::unique_ptr<Program> parse(std::string_view source) {
  if (source.size() > kMaxSource) syntax_error(1, fmt::format("the template is longer than {} bytes", kMaxSource));
  return Parser(source).run();
}

}  // namespace sluice::jinja
