package ir

// DrawModule is for tests of packages that import this one.
var DrawModule = drawModule
