// Parses tokens into expressions; Parser (parser.cc) adds the statements.
#pragma once

#include <fmt/core.h>

#include <algorithm>
#include <initializer_list>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "chat/jinja/ast.h"
#include "chat/jinja/lexer.h"
#include "chat/jinja/text.h"

namespace sluice::jinja {

inline constexpr int kMaxNesting = 100;         // nested brackets, tags and prefix operators
inline constexpr uint32_t kMaxExprDepth = 250;  // levels of an expression, including chains of attributes and filters

class ExprParser {
 protected:
  explicit ExprParser(std::string_view source) : tokens_(tokenize(source)), program_(std::make_unique<Program>()) {}

  // Which special variables a macro's body mentions. A macro gets them only if it mentions them.
  struct MacroContext {
    bool caller = false, varargs = false, kwargs = false;
    bool stored_caller = false, stored_varargs = false, stored_kwargs = false;
  };
  struct Unknown {
    uint32_t line;
    std::string message;
  };

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
      case TokenKind::kText:
        return "template text";
      case TokenKind::kOutputBegin:
        return "begin of print statement";
      case TokenKind::kOutputEnd:
        return "end of print statement";
      case TokenKind::kBlockBegin:
        return "begin of statement block";
      case TokenKind::kBlockEnd:
        return "end of statement block";
      case TokenKind::kEnd:
        return "end of template";
      default:
        return fmt::format("'{}'", text::clip(token.text));
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
    explicit Nesting(ExprParser& parser) : parser_(parser) {
      if (++parser_.nesting_ > kMaxNesting) parser_.fail(fmt::format("nested deeper than {} levels", kMaxNesting));
    }
    ~Nesting() { --parser_.nesting_; }

   private:
    ExprParser& parser_;
  };

  // Node construction.
  NameId name_id(const std::string& name);
  static uint32_t depth_of(const ExprPtr& expr);
  static uint32_t depth_of(const std::vector<ExprPtr>& exprs);
  static uint32_t depth_of(const Arguments& arguments);
  template <class Op>
  static uint32_t depth_of(const std::vector<std::pair<Op, ExprPtr>>& rest);
  // `below` is the depth of the deepest operand.
  template <class Node>
  ExprPtr make(uint32_t at_line, uint32_t below, Node node) const;
  ExprPtr constant(uint32_t at_line, Constant value);
  ExprPtr load_name(uint32_t at_line, const std::string& name);
  NameId store_name(const std::string& name);

  // Expressions. Expressions separated by commas form a tuple.
  ExprPtr parse_tuple(bool with_conditional = true, std::string_view end_name = "", bool in_parentheses = false);
  ExprPtr parse_expression();
  template <class Next>
  ExprPtr parse_logic(std::string_view word, bool all, Next&& parse_next);
  ExprPtr parse_or();
  ExprPtr parse_not();
  std::optional<CompareOp> take_compare_op();
  ExprPtr parse_compare();
  template <class Next>
  ExprPtr parse_binary(std::initializer_list<std::pair<std::string_view, BinaryOp>> ops, Next&& parse_next);
  ExprPtr parse_sum();
  ExprPtr parse_concat();
  ExprPtr parse_product();
  ExprPtr parse_power();
  ExprPtr parse_unary(bool with_filter);
  ExprPtr parse_primary();
  ExprPtr parse_list(uint32_t at_line);
  ExprPtr parse_dict(uint32_t at_line);
  ExprPtr parse_postfix(ExprPtr value);
  ExprPtr parse_attribute(ExprPtr object);
  ExprPtr parse_subscript(ExprPtr object);
  ExprPtr parse_slice(uint32_t at_line, ExprPtr object, ExprPtr start, bool in_tuple);
  Arguments parse_arguments();
  ExprPtr parse_call(ExprPtr callee);
  ExprPtr parse_filter_expr(ExprPtr value);
  std::string parse_dotted_name();
  void note_unknown(const Builtin* found, std::string_view what, const std::string& name, uint32_t at_line);
  ExprPtr parse_filters(ExprPtr value);
  ExprPtr parse_filter(ExprPtr value);
  // A test with one argument may omit the parentheses.
  bool bare_argument_follows() const;
  ExprPtr parse_test(ExprPtr value);

  const std::vector<Token> tokens_;
  size_t at_ = 0;
  std::unique_ptr<Program> program_;
  std::unordered_map<std::string, NameId> ids_;
  int nesting_ = 0;
  int for_depth_ = 0;  // enclosing for statements
  int breakable_ = 0;  // enclosing loops that break and continue can end
  int soft_ = 0;       // enclosing if statements
  std::vector<MacroContext> macros_;
  std::vector<bool*> loops_;  // ForStmt::uses_loop of the enclosing bodies
  std::vector<Unknown> unknown_;
};

}  // namespace sluice::jinja
