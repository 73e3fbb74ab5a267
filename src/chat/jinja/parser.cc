// Parses statements and assignment targets, including loop controls and the generation tag.
#include "chat/jinja/parser.h"

#include <fmt/core.h>

#include <algorithm>
#include <initializer_list>

#include "chat/jinja/expr_parser.h"
#include "chat/jinja/text.h"

namespace sluice::jinja {
namespace {

class Parser : ExprParser {
 public:
  explicit Parser(std::string_view source) : ExprParser(source) {
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
  // Parses statements up to a tag named in `ends`, consumes its name and returns it. With empty `ends`, parses up to
  // the template's end.
  std::string parse_until(Block& body, std::initializer_list<std::string_view> ends) {
    const Nesting nesting(*this);
    while (true) {
      const uint32_t at_line = line();
      switch (token().kind) {
        case TokenKind::kText:
          body.push_back({at_line, TextStmt{take().text}});
          break;
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

  // Parses the rest of a tag and its body.
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
    ++soft_;  // an unknown filter may be in a branch that is never taken
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
      const bool twice =
          std::any_of(macro.parameters.begin(), macro.parameters.end(), [&](const auto& p) { return p.id == id; });
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

  // Marks the assistant's tokens for training; when rendering, it is just a scope.
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
};

}  // namespace

std::unique_ptr<Program> parse(std::string_view source) {
  if (source.size() > kMaxSource) syntax_error(1, fmt::format("the template is longer than {} bytes", kMaxSource));
  if (!text::is_valid(source)) syntax_error(1, "the template is not UTF-8");
  return Parser(source).run();
}

}  // namespace sluice::jinja
