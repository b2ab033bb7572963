package header

import (
	"github.com/alecthomas/participle/v2"
	"github.com/alecthomas/participle/v2/lexer"
)

// The grammar of what headers with parameter structures are made of. Bodies of
// functions are read as balanced text.

type astFile struct {
	Decls []*astDecl `parser:"@@*"`
}

type astDecl struct {
	Pos       lexer.Position
	Empty     bool          `parser:"( @';'"`
	Access    string        `parser:"| @('public' | 'private' | 'protected') ':'"`
	Namespace *astNamespace `parser:"| @@"`
	Extern    *astBlock     `parser:"| 'extern' String @@"`
	Using     *astUsing     `parser:"| 'using' @@ ';'"`
	Assert    *astParens    `parser:"| 'static_assert' @@ ';'"`
	Typedef   *astTypedef   `parser:"| @@"`
	Operator  *astOperator  `parser:"| @@"`
	Ctor      *astCtor      `parser:"| @@"`
	Var       *astVar       `parser:"| @@ )"`
}

type astNamespace struct {
	Names []string  `parser:"'inline'? 'namespace' ( @Ident ( '::' @Ident )* )?"`
	Body  *astBlock `parser:"( @@"`
	Alias *astName  `parser:"| '=' @@ ';' )"`
}

type astBlock struct {
	Decls []*astDecl `parser:"'{' @@* '}'"`
}

type astUsing struct {
	Namespace *astName `parser:"( 'namespace' @@"`
	Name      string   `parser:"| (?= Ident '=' ) @Ident '='"`
	Type      *astType `parser:"  @@"`
	Stars     []string `parser:"  @'*'*"`
	Import    *astName `parser:"| @@ )"`
}

type astTypedef struct {
	Type  *astType         `parser:"'typedef' @@"`
	Names []*astDeclarator `parser:"@@ ( ',' @@ )* ';'"`
}

// A conversion.
type astOperator struct {
	Type *astType   `parser:"(?= 'explicit'? 'operator' ) 'explicit'? 'operator' @@ ( '*' | '&' )*"`
	Args *astParens `parser:"@@"`
	Rest *astRest   `parser:"@@"`
}

// A constructor, or a destructor.
type astCtor struct {
	Pos   lexer.Position
	Tilde bool       `parser:"(?= ( 'explicit' | 'constexpr' | 'inline' )* '~'? Ident '(' ) ( 'explicit' | 'constexpr' | 'inline' )* @'~'?"`
	Name  string     `parser:"@Ident '('"`
	Args  []*astArg  `parser:"( (?= 'void' ')' ) 'void' | @@ ( ',' @@ )* )? ')' 'noexcept'?"`
	Inits []*astInit `parser:"( ':' @@ ( ',' @@ )* )?"`
	Rest  *astRest   `parser:"@@"`
}

type astArg struct {
	Type    *astType  `parser:"@@"`
	Stars   []string  `parser:"@( '*' | '&' | 'const' )*"`
	Name    string    `parser:"@Ident?"`
	Dims    []*astDim `parser:"@@*"`
	Default *astExpr  `parser:"( '=' @@ )?"`
}

type astInit struct {
	Name *astName    `parser:"@@"`
	List []*astValue `parser:"( '(' ( @@ ( ',' @@ )* )? ')' | '{' ( @@ ( ',' @@ )* ','? )? '}' )"`
}

// What follows the head of a function.
type astRest struct {
	Pure string   `parser:"( 'const' | 'noexcept' | 'override' | 'final' )* ( '=' @( 'default' | 'delete' | Number ) ';' | ';'"`
	Body *astBody `parser:"| @@ )"`
}

// astBody is balanced text in braces.
type astBody struct {
	Items []*astItem `parser:"'{' @@* '}'"`
}

type astItem struct {
	Body  *astBody `parser:"( @@"`
	Token string   `parser:"| @~( '{' | '}' ) )"`
}

// astParens is balanced text in parentheses.
type astParens struct {
	Items []*astParen `parser:"'(' @@* ')'"`
}

type astParen struct {
	Inner *astParens `parser:"( @@"`
	Token string     `parser:"| @~( '(' | ')' ) )"`
}

// A field, variable, constant or function, or a type alone.
type astVar struct {
	Pos   lexer.Position
	Align []*astParens     `parser:"( 'alignas' @@ )*"`
	Specs []string         `parser:"@( 'static' | 'inline' | 'constexpr' | 'extern' | 'virtual' | 'mutable' | 'friend' )*"`
	Type  *astType         `parser:"@@"`
	Func  *astFunc         `parser:"( @@"`
	Names []*astDeclarator `parser:"| ( @@ ( ',' @@ )* )? ';' )"`
}

type astFunc struct {
	Name string     `parser:"(?= ( '*' | '&' | 'const' )* ( Ident '(' | 'operator' ) ) ( '*' | '&' | 'const' )* ( @Ident"`
	Op   []string   `parser:"| 'operator' ( '(' ')' | @~'('+ ) )"`
	Args *astParens `parser:"@@"`
	Rest *astRest   `parser:"@@"`
}

type astDeclarator struct {
	Pos   lexer.Position
	Stars []string    `parser:"( @( '*' | '&' ) 'const'? )*"`
	Name  string      `parser:"( @Ident"`
	Dims  []*astDim   `parser:"  @@*"`
	Bits  *astExpr    `parser:"  ( ':' @@ )?"`
	Bare  *astExpr    `parser:"| ':' @@ )"` // bits without a name
	Attrs []*astAttr  `parser:"@@*"`
	Init  *astExpr    `parser:"( '=' @@"`
	Brace *astInitial `parser:"| '='? @@ )?"`
}

// An attribute of gcc.
type astAttr struct {
	Pos   lexer.Position
	Items []*astParen `parser:"'__attribute__' '(' '(' @@* ')' ')'"`
}

type astDim struct {
	Pos  lexer.Position
	Size *astExpr `parser:"'[' @@? ']'"`
}

type astInitial struct {
	List []*astValue `parser:"'{' ( @@ ( ',' @@ )* ','? )? '}'"`
}

type astValue struct {
	List *astInitial `parser:"( @@"`
	Expr *astExpr    `parser:"| @@ )"`
}

type astType struct {
	Pos    lexer.Position
	Const  []string   `parser:"@( 'const' | 'volatile' )*"`
	Struct *astStruct `parser:"( @@"`
	Enum   *astEnum   `parser:"| @@"`
	Basic  []string   `parser:"| ( @( 'void' | 'bool' | 'char' | 'short' | 'int' | 'long' | 'float' | 'double' | 'signed' | 'unsigned' ) 'const'? )+"`
	Tag    string     `parser:"| @( 'struct' | 'class' | 'union' | 'enum' )?"`
	Name   *astName   `parser:"  @@ ) 'const'?"`
}

type astName struct {
	Pos   lexer.Position
	Root  bool     `parser:"@'::'?"`
	Parts []string `parser:"@Ident ( '::' @Ident )*"`
	Args  []string `parser:"( (?= '<' ( Ident | Keyword | Number | '::' | ',' | '*' | 'const' )* '>' ) @'<' ~'>'* '>' )?"`
	More  []string `parser:"( '::' @Ident )*"`
}

type astStruct struct {
	Pos   lexer.Position
	Kind  string       `parser:"(?= ( 'struct' | 'class' | 'union' ) ( '__attribute__' | 'alignas' | Ident? 'final'? ( '{' | ':' ) ) ) @( 'struct' | 'class' | 'union' )"`
	Attrs []*astAttr   `parser:"@@*"`
	Align []*astParens `parser:"( 'alignas' @@ )*"`
	Name  string       `parser:"@Ident? 'final'?"`
	Bases []*astBase   `parser:"( ':' @@ ( ',' @@ )* )?"`
	Body  *astBlock    `parser:"@@"`
	After []*astAttr   `parser:"@@*"`
}

type astBase struct {
	Specs []string `parser:"@( 'public' | 'private' | 'protected' | 'virtual' )*"`
	Name  *astName `parser:"@@"`
}

type astEnum struct {
	Pos    lexer.Position
	Scoped bool        `parser:"(?= 'enum' ( 'class' | 'struct' )? Ident? ( '{' | ':' ) ) 'enum' @( 'class' | 'struct' )?"`
	Name   string      `parser:"@Ident?"`
	Base   *astType    `parser:"( ':' @@ )? '{'"`
	Values []*astEnumV `parser:"( @@ ( ',' @@ )* ','? )? '}'"`
}

type astEnumV struct {
	Pos   lexer.Position
	Name  string   `parser:"@Ident"`
	Value *astExpr `parser:"( '=' @@ )?"`
}

// astExpr is operands and what stands between them; precedence is settled when it is
// evaluated.
type astExpr struct {
	Pos   lexer.Position
	First *astOperand `parser:"@@"`
	Rest  []*astTerm  `parser:"@@*"`
}

type astTerm struct {
	Op string      `parser:"@( '+' | '-' | '*' | '/' | '%' | '<<' | '>>' | '<=' | '>=' | '==' | '!=' | '<' | '>' | '&&' | '||' | '&' | '|' | '^' | '?' | ':' )"`
	X  *astOperand `parser:"@@"`
}

type astOperand struct {
	Pos    lexer.Position
	Unary  []string   `parser:"@( '-' | '+' | '~' | '!' )*"`
	Number string     `parser:"( @Number"`
	Char   string     `parser:"| @Char"`
	Text   string     `parser:"| @String"`
	Word   string     `parser:"| @( 'true' | 'false' | 'nullptr' )"`
	Sizeof *astType   `parser:"| 'sizeof' '(' @@ ')'"`
	Cast   *astCast   `parser:"| 'static_cast' '<' @@"`
	CCast  *astCCast  `parser:"| @@"`
	Paren  *astExpr   `parser:"| '(' @@ ')'"`
	Name   *astName   `parser:"| @@"`
	Call   *astParens `parser:"  @@? )"`
}

type astCast struct {
	Type *astType `parser:"@@ '>'"`
	X    *astExpr `parser:"'(' @@ ')'"`
}

type astCCast struct {
	Type *astType    `parser:"(?= '(' ( 'bool' | 'char' | 'short' | 'int' | 'long' | 'float' | 'double' | 'signed' | 'unsigned' ) ) '(' @@ ')'"`
	X    *astOperand `parser:"@@"`
}

var cLexer = lexer.MustSimple([]lexer.SimpleRule{
	{Name: "Space", Pattern: `[ \t\r\n\f]+`},
	{Name: "String", Pattern: `"(\\.|[^"\\\n])*"`},
	{Name: "Char", Pattern: `'(\\.|[^'\\\n])+'`},
	{Name: "Number", Pattern: `(0[xX][0-9a-fA-F']+|0[bB][01']+|([0-9][0-9']*\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?)[uUlLfFzZ]*`},
	{Name: "Keyword", Pattern: `\b(namespace|extern|using|typedef|struct|class|union|enum|public|private|protected|static|inline|constexpr|virtual|mutable|friend|const|volatile|void|bool|char|short|int|long|float|double|signed|unsigned|operator|explicit|static_assert|static_cast|sizeof|true|false|nullptr|noexcept|override|final|default|delete|template|alignas|__attribute__)\b`},
	{Name: "Ident", Pattern: `[A-Za-z_][A-Za-z0-9_]*`},
	{Name: "Punct", Pattern: `::|<<|>>|<=|>=|==|!=|&&|\|\||->|[-+*/%&|^~!<>=?:;,.(){}\[\]]`},
})

func build[T any]() *participle.Parser[T] {
	return participle.MustBuild[T](participle.Lexer(cLexer), participle.Elide("Space"), participle.UseLookahead(3))
}

var (
	fileParser = build[astFile]()
	exprParser = build[astExpr]()
)
