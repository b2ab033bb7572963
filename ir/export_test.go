package ir

// DrawModule and DrawLured are for tests of packages that import this one.
var (
	DrawModule = drawModule
	DrawLured  = drawLured
)
