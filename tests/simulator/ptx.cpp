// SPDX-License-Identifier: Apache-2.0
#include "ptx.h"

#include <algorithm>
#include <cctype>
#include <cstdlib>
#include <cstring>
#include <set>

#include "error.h"

namespace dsv4::simulator::ptx {
namespace {

struct TypeInfo {
  const char* name;
  Type type;
  int bytes;
};

constexpr TypeInfo kTypes[] = {
    {"b8", Type::kB8, 1},         {"b16", Type::kB16, 2},       {"b32", Type::kB32, 4},
    {"b64", Type::kB64, 8},       {"b128", Type::kB128, 16},    {"u8", Type::kU8, 1},
    {"u16", Type::kU16, 2},       {"u32", Type::kU32, 4},       {"u64", Type::kU64, 8},
    {"s8", Type::kS8, 1},         {"s16", Type::kS16, 2},       {"s32", Type::kS32, 4},
    {"s64", Type::kS64, 8},       {"f16", Type::kF16, 2},       {"f16x2", Type::kF16x2, 4},
    {"bf16", Type::kBF16, 2},     {"bf16x2", Type::kBF16x2, 4}, {"tf32", Type::kTF32, 4},
    {"f32", Type::kF32, 4},       {"f32x2", Type::kF32x2, 8},   {"f64", Type::kF64, 8},
    {"e4m3x2", Type::kE4M3x2, 2}, {"e5m2x2", Type::kE5M2x2, 2}, {"ue8m0x2", Type::kUE8M0x2, 2},
    {"e2m1x2", Type::kE2M1x2, 1}, {"pred", Type::kPred, 4},
};

bool is_space(char c) { return std::isspace(static_cast<unsigned char>(c)) != 0; }
bool is_name(char c) {
  return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_' || c == '$' || c == '%' ||
         c == '.';
}

std::string trimmed(std::string_view s) {
  while (!s.empty() && is_space(s.front())) s.remove_prefix(1);
  while (!s.empty() && is_space(s.back())) s.remove_suffix(1);
  return std::string(s);
}

bool starts_with(std::string_view s, std::string_view prefix) {
  return s.substr(0, prefix.size()) == prefix;
}

// Splits at commas that stand outside of any bracket.
std::vector<std::string> split_at_commas(std::string_view s) {
  std::vector<std::string> pieces;
  int depth = 0;
  size_t begin = 0;
  for (size_t i = 0; i < s.size(); ++i) {
    if (s[i] == '{' || s[i] == '[' || s[i] == '(') ++depth;
    if (s[i] == '}' || s[i] == ']' || s[i] == ')') --depth;
    if (s[i] == ',' && depth == 0) {
      pieces.push_back(trimmed(s.substr(begin, i - begin)));
      begin = i + 1;
    }
  }
  std::string last = trimmed(s.substr(begin));
  if (!last.empty()) pieces.push_back(last);
  return pieces;
}

std::vector<std::string> split_at_dots(std::string_view s) {
  std::vector<std::string> parts;
  size_t begin = 0;
  for (size_t i = 0; i <= s.size(); ++i) {
    if (i == s.size() || s[i] == '.') {
      parts.emplace_back(s.substr(begin, i - begin));
      begin = i + 1;
    }
  }
  return parts;
}

// Comments become spaces, lines that carry no code (debug data, .loc, .file, .pragma) become empty;
// line numbers stay.
std::string without_comments(std::string text) {
  for (size_t i = 0; i + 1 < text.size(); ++i) {
    if (text[i] == '/' && text[i + 1] == '/') {
      while (i < text.size() && text[i] != '\n') text[i++] = ' ';
    } else if (text[i] == '/' && text[i + 1] == '*') {
      size_t end = text.find("*/", i + 2);
      end = end == std::string::npos ? text.size() : end + 2;
      for (; i < end; ++i) {
        if (text[i] != '\n') text[i] = ' ';
      }
    }
  }
  size_t begin = 0;
  bool in_section = false;
  while (begin < text.size()) {
    size_t end = text.find('\n', begin);
    if (end == std::string::npos) end = text.size();
    const std::string line = trimmed(std::string_view(text).substr(begin, end - begin));
    // A .section lasts to the closing brace of its own line.
    if (starts_with(line, ".section")) in_section = true;
    const bool drop = in_section || starts_with(line, ".loc ") || starts_with(line, ".loc\t") ||
                      starts_with(line, ".file") || starts_with(line, ".pragma");
    if (in_section && !line.empty() && line.back() == '}') in_section = false;
    if (drop) std::fill(text.begin() + int64_t(begin), text.begin() + int64_t(end), ' ');
    begin = end + 1;
  }
  return text;
}

class Parser {
 public:
  explicit Parser(const std::string& source) : text_(without_comments(source)) {}

  Module run() {
    while (skip_space(), at_ < text_.size()) item();
    return std::move(module_);
  }

 private:
  struct Scope {
    std::map<std::string, int> registers;
    std::map<std::string, int> labels;
    int parent;
  };

  void skip_space() {
    while (at_ < text_.size() && is_space(text_[at_])) ++at_;
  }
  int line_of(size_t position) {
    for (; counted_ < position; ++counted_) line_ += text_[counted_] == '\n';
    return line_;
  }
  // Everything up to one of `ends` outside of braces; leaves at_ on that character.
  std::string until(const char* ends) {
    const size_t begin = at_;
    int depth = 0;
    for (; at_ < text_.size(); ++at_) {
      const char c = text_[at_];
      if (depth == 0 && std::strchr(ends, c) != nullptr) break;
      if (c == '{') ++depth;
      if (c == '}') --depth;
    }
    if (at_ >= text_.size()) fail("PTX line %d: the text ends inside a statement", line_of(begin));
    return trimmed(std::string_view(text_).substr(begin, at_ - begin));
  }
  std::string rest_of_line() {
    const size_t begin = at_;
    while (at_ < text_.size() && text_[at_] != '\n') ++at_;
    return trimmed(std::string_view(text_).substr(begin, at_ - begin));
  }

  void item() {
    const size_t begin = at_;
    if (starts_with(std::string_view(text_).substr(at_), ".version") ||
        starts_with(std::string_view(text_).substr(at_), ".address_size")) {
      rest_of_line();
      return;
    }
    if (starts_with(std::string_view(text_).substr(at_), ".target")) {
      const std::string line = rest_of_line();
      module_.target = trimmed(std::string_view(line).substr(7, line.find(',') - 7));
      return;
    }
    const std::string head = until(";{(");
    if (head.find(".entry") != std::string::npos) {
      entry(head);
    } else if (head.find(".func") != std::string::npos) {
      skip_function();
    } else {
      at_ = begin;
      const std::string declaration = until(";");
      ++at_;
      module_variable(declaration);
    }
  }

  // A device function: to the end of its body, or of its declaration.
  void skip_function() {
    until(";{");
    if (text_[at_] == ';') {
      ++at_;
      return;
    }
    int depth = 0;
    do {
      if (text_[at_] == '{') ++depth;
      if (text_[at_] == '}') --depth;
      ++at_;
    } while (depth > 0 && at_ < text_.size());
  }

  // ".shared .align 16 .b8 name[256]" without its initialiser.
  Variable variable(std::string_view declaration) {
    Variable v;
    Type type = Type::kNone;
    std::string name;
    size_t i = 0;
    while (i < declaration.size()) {
      while (i < declaration.size() && is_space(declaration[i])) ++i;
      const size_t begin = i;
      while (i < declaration.size() && !is_space(declaration[i])) ++i;
      const std::string word(declaration.substr(begin, i - begin));
      if (word == ".align") {
        v.alignment = size_t(std::strtoul(declaration.data() + i, nullptr, 10));
        while (i < declaration.size() && is_space(declaration[i])) ++i;
        while (i < declaration.size() && std::isdigit(static_cast<unsigned char>(declaration[i])))
          ++i;
      } else if (word ==
                 ".ptr") {  // a hint on a pointer parameter, with an alignment of what it points to
        const size_t align = declaration.find(".align", i);
        if (align != std::string_view::npos) {
          i = align + 6;
          while (i < declaration.size() && is_space(declaration[i])) ++i;
          while (i < declaration.size() && std::isdigit(static_cast<unsigned char>(declaration[i])))
            ++i;
        }
      } else if (!word.empty() && word[0] == '.') {
        if (type_of(word.substr(1)) != Type::kNone) type = type_of(word.substr(1));
      } else {
        name += word;
      }
    }
    size_t count = 1;
    if (const size_t bracket = name.find('['); bracket != std::string::npos) {
      count = size_t(std::strtoul(name.c_str() + bracket + 1, nullptr, 10));
      name.resize(bracket);
    }
    if (type == Type::kNone || name.empty())
      fail("PTX: cannot read the declaration %s", std::string(declaration).c_str());
    v.name = name;
    v.bytes = count * size_t(bytes_of(type));
    v.alignment = std::max(v.alignment, size_t(bytes_of(type)));
    element_bytes_ = size_t(bytes_of(type));
    return v;
  }

  static void place(Variable& v, size_t& end) {
    v.offset = (end + v.alignment - 1) / v.alignment * v.alignment;
    end = v.offset + v.bytes;
  }

  void module_variable(const std::string& declaration) {
    if (declaration.find(".shared") != std::string::npos) {
      Variable v = variable(declaration);
      v.dynamic = declaration.find(".extern") != std::string::npos;
      module_shared_.push_back(v);
      return;
    }
    if (declaration.find(".global") == std::string::npos &&
        declaration.find(".const") == std::string::npos) {
      fail("PTX: unknown declaration %s", declaration.c_str());
    }
    const size_t equals = declaration.find('=');
    Variable v = variable(std::string_view(declaration).substr(0, equals));
    v.initial.assign(v.bytes, 0);
    if (equals != std::string::npos) {
      std::string list = trimmed(std::string_view(declaration).substr(equals + 1));
      if (!list.empty() && list.front() == '{') list = list.substr(1, list.rfind('}') - 1);
      size_t at = 0;
      for (const std::string& value : split_at_commas(list)) {
        const Operand constant = literal(value);
        if (at + element_bytes_ > v.bytes)
          fail("PTX: too many initial values for %s", v.name.c_str());
        std::memcpy(v.initial.data() + at, &constant.bits, std::min<size_t>(element_bytes_, 8));
        at += element_bytes_;
      }
    }
    module_.globals.push_back(std::move(v));
  }

  void entry(const std::string& head) {
    function_ = Function();
    scopes_.clear();
    pending_labels_.clear();
    function_.name = trimmed(std::string_view(head).substr(head.find(".entry") + 6));
    for (Variable v : module_shared_) {
      if (!v.dynamic) place(v, function_.shared_bytes);
      function_.shared.push_back(v);
    }
    if (text_[at_] == '(') {
      const size_t close = text_.find(')', at_);
      const std::string list = text_.substr(at_ + 1, close - at_ - 1);
      for (const std::string& declaration : split_at_commas(list)) {
        Variable v = variable(declaration);
        place(v, function_.parameter_bytes);
        function_.parameters.push_back(std::move(v));
      }
      at_ = close + 1;
    }
    const std::string directives = until("{");
    read_dims(directives, ".reqnctapercluster", function_.required_cluster);
    read_dims(directives, ".maxntid", function_.max_threads);
    read_dims(directives, ".reqntid", function_.max_threads);
    ++at_;
    body();
    module_.functions.push_back(std::move(function_));
  }

  static void read_dims(const std::string& directives, const char* name, uint32_t (&dims)[3]) {
    const size_t at = directives.find(name);
    if (at == std::string::npos) return;
    const char* p = directives.c_str() + at + std::strlen(name);
    for (uint32_t& dim : dims) {
      char* end;
      const unsigned long value = std::strtoul(p, &end, 10);
      dim = end == p ? 1 : uint32_t(value);
      p = end;
      while (is_space(*p)) ++p;
      if (*p == ',') ++p;
    }
  }

  void open_scope() {
    scopes_.push_back({{}, {}, scope_});
    scope_ = int(scopes_.size()) - 1;
  }

  void body() {
    scope_ = -1;
    open_scope();
    while (scope_ >= 0) {
      skip_space();
      if (at_ >= text_.size()) fail("PTX: the body of %s does not end", function_.name.c_str());
      if (text_[at_] == '{') {
        open_scope();
        ++at_;
      } else if (text_[at_] == '}') {
        scope_ = scopes_[size_t(scope_)].parent;
        ++at_;
      } else if (!label()) {
        const size_t begin = at_;
        const int line = line_of(begin);
        const std::string s = until(";");
        ++at_;
        if (!s.empty()) statement(s, line);
      }
    }
    for (const PendingLabel& pending : pending_labels_) {
      function_.statements[pending.statement].operands[pending.operand].index = find_label(pending);
    }
  }

  bool label() {
    size_t end = at_;
    while (end < text_.size() && is_name(text_[end])) ++end;
    size_t colon = end;
    while (colon < text_.size() && is_space(text_[colon])) ++colon;
    if (end == at_ || text_[at_] == '.' || colon + 1 >= text_.size() || text_[colon] != ':' ||
        text_[colon + 1] == ':')
      return false;
    scopes_[size_t(scope_)].labels[text_.substr(at_, end - at_)] = int(function_.statements.size());
    at_ = colon + 1;
    return true;
  }

  void statement(const std::string& s, int line) {
    if (starts_with(s, ".param")) {
      call(line);
      return;
    }
    if (s[0] == '.') {
      directive(s);
      return;
    }
    Statement result;
    result.line = line;
    result.text = s;
    std::string rest = s;
    if (rest[0] == '@') {
      size_t end = 1;
      while (end < rest.size() && !is_space(rest[end])) ++end;
      std::string guard = rest.substr(1, end - 1);
      if (!guard.empty() && guard[0] == '!') {
        result.guard_negated = true;
        guard.erase(0, 1);
      }
      result.guard = find_register(guard);
      if (result.guard < 0) fail("PTX line %d: unknown predicate %s", line, guard.c_str());
      rest = trimmed(std::string_view(rest).substr(end));
    }
    size_t end = 0;
    while (end < rest.size() && (is_name(rest[end]) || rest[end] == ':')) ++end;
    result.opcode = rest.substr(0, end);
    result.parts = split_at_dots(result.opcode);
    const bool branches = result.parts[0] == "bra" || result.parts[0] == "brx";
    for (const std::string& operand_text : split_at_commas(std::string_view(rest).substr(end))) {
      if (branches && find_register(operand_text) < 0) {
        Operand target;
        target.kind = Operand::Kind::kLabel;
        target.name = operand_text;
        pending_labels_.push_back(
            {function_.statements.size(), result.operands.size(), operand_text, scope_, line});
        result.operands.push_back(target);
      } else {
        result.operands.push_back(operand(operand_text, line));
      }
    }
    function_.statements.push_back(std::move(result));
  }

  // The rest of the scope is a call (of printf, say, in an assertion). It becomes one statement, an
  // error for the thread that gets there.
  void call(int line) {
    const std::string scope = until("}");
    const size_t name = scope.find("call");
    if (name == std::string::npos) fail("PTX line %d: expected a call behind .param", line);
    Statement result;
    result.line = line;
    result.text = scope.substr(name, scope.find(';', name) - name);
    result.opcode = "call";
    result.parts = {"call"};
    function_.statements.push_back(std::move(result));
  }

  void directive(const std::string& s) {
    if (starts_with(s, ".reg")) {
      size_t begin = 4;
      while (is_space(s[begin])) ++begin;
      size_t end = begin;
      while (!is_space(s[end])) ++end;
      const Type type = type_of(std::string_view(s).substr(begin + 1, end - begin - 1));
      if (type == Type::kNone) fail("PTX: unknown register type in %s", s.c_str());
      for (const std::string& name : split_at_commas(std::string_view(s).substr(end))) {
        const size_t angle = name.find('<');
        if (angle == std::string::npos) {
          add_register(name, type);
          continue;
        }
        const int count = std::atoi(name.c_str() + angle + 1);
        for (int i = 0; i < count; ++i)
          add_register(trimmed(name.substr(0, angle)) + std::to_string(i), type);
      }
    } else if (starts_with(s, ".shared")) {
      Variable v = variable(s);
      place(v, function_.shared_bytes);
      function_.shared.push_back(std::move(v));
    } else if (starts_with(s, ".local")) {
      Variable v = variable(s);
      place(v, function_.local_bytes);
      function_.local.push_back(std::move(v));
    } else if (starts_with(s, ".branchtargets")) {
      fail("PTX: indirect branches are not simulated: %s", s.c_str());
    } else {
      fail("PTX: unknown directive %s", s.c_str());
    }
  }

  void add_register(const std::string& name, Type type) {
    scopes_[size_t(scope_)].registers[name] = int(function_.registers.size());
    function_.registers.push_back({name, type});
  }

  int find_register(const std::string& name) const {
    for (int scope = scope_; scope >= 0; scope = scopes_[size_t(scope)].parent) {
      const auto found = scopes_[size_t(scope)].registers.find(name);
      if (found != scopes_[size_t(scope)].registers.end()) return found->second;
    }
    return -1;
  }

  struct PendingLabel {
    size_t statement, operand;
    std::string name;
    int scope, line;
  };

  int find_label(const PendingLabel& pending) const {
    for (int scope = pending.scope; scope >= 0; scope = scopes_[size_t(scope)].parent) {
      const auto found = scopes_[size_t(scope)].labels.find(pending.name);
      if (found != scopes_[size_t(scope)].labels.end()) return found->second;
    }
    fail("PTX line %d: unknown label %s", pending.line, pending.name.c_str());
  }

  static Operand literal(const std::string& s) {
    Operand o;
    o.kind = Operand::Kind::kImmediate;
    if (s.size() > 2 && s[0] == '0' && (s[1] == 'f' || s[1] == 'F' || s[1] == 'd' || s[1] == 'D')) {
      o.bits = std::strtoull(s.c_str() + 2, nullptr, 16);
    } else {
      o.bits = s[0] == '-' ? uint64_t(std::strtoll(s.c_str(), nullptr, 0))
                           : std::strtoull(s.c_str(), nullptr, 0);
    }
    return o;
  }

  Operand operand(const std::string& s, int line) {
    Operand o;
    if (s.empty()) fail("PTX line %d: an operand is missing", line);
    if (s[0] != '[' && s[0] != '{') {
      if (const size_t bar = s.find('|'); bar != std::string::npos) {
        o = operand(trimmed(std::string_view(s).substr(0, bar)), line);
        o.pair.push_back(operand(trimmed(std::string_view(s).substr(bar + 1)), line));
        return o;
      }
    }
    if (s == "_") return o;
    if (s[0] == '!') {
      o = operand(trimmed(std::string_view(s).substr(1)), line);
      o.negated = true;
      return o;
    }
    if (s[0] == '{') {
      o.kind = Operand::Kind::kVector;
      for (const std::string& element :
           split_at_commas(std::string_view(s).substr(1, s.size() - 2))) {
        o.elements.push_back(operand(element, line));
      }
      return o;
    }
    if (s[0] == '[') return address(s, line);
    if (const int index = find_register(s); index >= 0) {
      o.kind = Operand::Kind::kRegister;
      o.index = index;
      return o;
    }
    if (s[0] == '%') {
      o.kind = Operand::Kind::kSpecial;
      o.name = s;
      return o;
    }
    if (std::isdigit(static_cast<unsigned char>(s[0])) || s[0] == '-' || s[0] == '+')
      return literal(s);
    o.kind = Operand::Kind::kSymbol;
    o.name = s;
    return o;
  }

  // [base], [base+16], [base, {c0, c1}], [base+8, c0]
  Operand address(const std::string& s, int line) {
    Operand o;
    o.kind = Operand::Kind::kAddress;
    const std::vector<std::string> pieces =
        split_at_commas(std::string_view(s).substr(1, s.size() - 2));
    std::string base = pieces.at(0);
    if (const size_t plus = base.find('+'); plus != std::string::npos) {
      o.displacement = std::strtoll(base.c_str() + plus + 1, nullptr, 0);
      base = trimmed(std::string_view(base).substr(0, plus));
    }
    o.elements.push_back(operand(base, line));
    for (size_t i = 1; i < pieces.size(); ++i) {
      Operand coordinate = operand(pieces[i], line);
      if (coordinate.kind == Operand::Kind::kVector) {
        for (Operand& element : coordinate.elements) o.elements.push_back(std::move(element));
      } else {
        o.elements.push_back(std::move(coordinate));
      }
    }
    return o;
  }

  std::string text_;
  size_t at_ = 0;
  size_t counted_ = 0;
  int line_ = 1;
  size_t element_bytes_ = 1;
  Module module_;
  std::vector<Variable> module_shared_;
  Function function_;
  std::vector<Scope> scopes_;
  int scope_ = -1;
  std::vector<PendingLabel> pending_labels_;
};

}  // namespace

Type type_of(std::string_view name) {
  for (const TypeInfo& info : kTypes) {
    if (name == info.name) return info.type;
  }
  return Type::kNone;
}

int bytes_of(Type type) {
  for (const TypeInfo& info : kTypes) {
    if (type == info.type) return info.bytes;
  }
  return 0;
}

const Function* Module::find(std::string_view name) const {
  for (const Function& function : functions) {
    if (function.name == name) return &function;
  }
  return nullptr;
}

Module parse(const std::string& text) { return Parser(text).run(); }

}  // namespace dsv4::simulator::ptx
