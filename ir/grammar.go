package ir

import (
	"github.com/alecthomas/participle/v2"
	"github.com/alecthomas/participle/v2/lexer"
)

// The grammar of IR text. Names in the text are resolved after parsing.

type astModule struct {
	Name  *astGlobal `parser:"'module' @@"`
	Attrs []*astAttr `parser:"( '{' ( @@ ( ',' @@ )* )? '}' )?"`
	Syms  []*astSym  `parser:"@@*"`
	Funcs []*astFunc `parser:"@@*"`
}

type astSym struct {
	Name *astWord   `parser:"'sym' @@"`
	Min  *astSum    `parser:"( ':' @@ '..'"`
	Max  *astSum    `parser:"  @@"`
	Def  *astSymDef `parser:"| '=' @@ )"`
}

type astSymDef struct {
	Fn string  `parser:"@('floor' | 'ceil' | 'min' | 'max') '('"`
	X  *astSum `parser:"@@ ','"`
	Y  *astSum `parser:"@@ ')'"`
}

type astFunc struct {
	Name    *astGlobal   `parser:"'func' @@ '('"`
	Params  []*astParam  `parser:"( @@ ( ',' @@ )* )? ')' '->' '('"`
	Results []*astResult `parser:"( @@ ( ',' @@ )* )? ')' '{'"`
	Ops     []*astOp     `parser:"@@*"`
	Return  *astReturn   `parser:"@@ '}'"`
}

type astParam struct {
	Kind   string     `parser:"@('input' | 'carry' | 'weight' | 'state' | 'temp')"`
	Name   *astArg    `parser:"@@ ':'"`
	Type   *astType   `parser:"@@"`
	Tensor *astString `parser:"( '=' ( @@"`
	Attrs  []*astAttr `parser:"    ( '{' @@ ( ',' @@ )* '}' )?"`
	Fill   *astFill   `parser:"  | @@ ) )?"`
}

type astFill struct {
	Fill *astSum `parser:"'fill' '(' @@ ','"`
	Step *astSum `parser:"@@ ')'"`
}

type astResult struct {
	Kind string   `parser:"@('output' | 'carry' | 'weight' | 'state' | 'temp')"`
	Name *astWord `parser:"@@ ':'"`
	Type *astType `parser:"@@"`
}

type astType struct {
	Pos   lexer.Position
	DType string    `parser:"@Ident"`
	Shape []*astSum `parser:"'[' ( @@ ( ',' @@ )* )? ']'"`
	Dist  *astDist  `parser:"@@?"`
}

type astDist struct {
	Pos  lexer.Position
	Kind string  `parser:"@Global"`
	Axis *astSum `parser:"( '(' @@ ','"`
	Ways *astSum `parser:"  @@ ')' )?"`
}

// What follows an op's name may be nothing, and then a value is a result of the
// next op.
type astOp struct {
	Results []*astArg  `parser:"( @@ ( ',' @@ )* '=' )?"`
	Name    *astWord   `parser:"(?! 'return' | 'func' ) @@"`
	Lead    *astValue  `parser:"( (?! Value | Ident | '[' ) @@ )?"`
	Args    []*astArg  `parser:"( (?! Value ( ',' Value )* '=' ) @@ ( ',' @@ )* )?"`
	Attrs   []*astAttr `parser:"( '{' ( @@ ( ',' @@ )* )? '}' )?"`
	Types   []*astType `parser:"( ':' @@ ( ',' @@ )* )?"`
	Loc     *astLoc    `parser:"@@?"`
}

type astReturn struct {
	Args []*astArg `parser:"'return' ( @@ ( ',' @@ )* )?"`
}

type astArg struct {
	Pos  lexer.Position
	Name string `parser:"@Value"`
}

type astWord struct {
	Pos  lexer.Position
	Name string `parser:"@Ident"`
}

type astGlobal struct {
	Pos  lexer.Position
	Name string `parser:"@Global"`
}

// astString is a string with its quotes.
type astString struct {
	Pos  lexer.Position
	Text string `parser:"@String"`
}

type astLoc struct {
	Layer *astSum      `parser:"'loc' '(' ( @@ ( ',' "`
	Names []*astString `parser:"  @@ ( ',' @@ )? )? | @@ ( ',' @@ )? ) ')'"`
}

type astAttr struct {
	Pos   lexer.Position
	Name  string    `parser:"@Ident '='"`
	Value *astValue `parser:"@@"`
}

type astValue struct {
	Pos    lexer.Position
	List   *astList   `parser:"  @@"`
	Str    *astString `parser:"| @@"`
	Global *string    `parser:"| @Global"`
	Sum    *astSum    `parser:"| @@"`
}

type astList struct {
	Items []*astSum `parser:"'[' ( @@ ( ',' @@ )* )? ']'"`
}

type astSum struct {
	Pos   lexer.Position
	Neg   bool       `parser:"@'-'?"`
	First *astProd   `parser:"@@"`
	Rest  []*astTerm `parser:"@@*"`
}

type astTerm struct {
	Op   string   `parser:"@('+' | '-')"`
	Prod *astProd `parser:"@@"`
}

type astProd struct {
	Factors []string `parser:"@(Number | Ident) ( '*' @(Number | Ident) )*"`
}

var qirLexer = lexer.MustSimple([]lexer.SimpleRule{
	{Name: "Comment", Pattern: `;[^\n]*`},
	{Name: "Space", Pattern: `[ \t\r\n]+`},
	{Name: "Value", Pattern: `%[A-Za-z0-9_.]+`},
	{Name: "Global", Pattern: `@[A-Za-z_][A-Za-z0-9_.]*`},
	{Name: "String", Pattern: `"(\\.|[^"\\\n])*"`},
	{Name: "Number", Pattern: `[0-9]+(\.[0-9]+)?([eE][-+]?[0-9]+)?`},
	{Name: "Ident", Pattern: `[A-Za-z_][A-Za-z0-9_]*(\.[A-Za-z0-9_]+)*`},
	{Name: "Arrow", Pattern: `->`},
	{Name: "Range", Pattern: `\.\.`},
	{Name: "Punct", Pattern: `[-+*=:,(){}\[\]@]`},
})

var qirParser = participle.MustBuild[astModule](
	participle.Lexer(qirLexer),
	participle.Elide("Comment", "Space"),
	participle.UseLookahead(0),
)
