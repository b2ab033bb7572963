package main

import (
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"quill/ir"
)

// usageError is a command line that cannot be meant.
type usageError string

func (e usageError) Error() string { return string(e) }

func usagef(format string, args ...any) error { return usageError(fmt.Sprintf(format, args...)) }

func newRoot() *cobra.Command {
	root := &cobra.Command{
		Use:   "quill",
		Short: "Compile Inkling models ahead of time and replay them",
		Long: `quill compiles a checkpoint of an Inkling model, for one deployment, into a
bundle of static recipes. Running a bundle compiles nothing.`,
		Example: examples(
			"quill compile chat.yaml -o chat.quill",
			"quill run chat.quill --model models/chat --prompt '<|message_user|><|content_text|>Hello<|end_message|><|message_model|>'",
			"quill inspect chat.quill",
		),
		SilenceErrors: true,
		SilenceUsage:  true,
		Args:          noCommand,
		RunE: func(cmd *cobra.Command, _ []string) error {
			cmd.SetOut(cmd.ErrOrStderr())
			_ = cmd.Help()
			return usagef("no command given")
		},
	}
	root.CompletionOptions.HiddenDefaultCmd = true
	root.SetFlagErrorFunc(flagError)
	root.SetHelpCommand(newHelp())
	root.AddCommand(newCompile(), newPlan(), newPack(), newRun(), newScore(), newBench(), newGenCheckpoint(), newInspect(), newCheck(), newDiff(), newDump(), newRecipe(), newPasses(), newOpt(), newEval(), newBisect(), newDiverge(), newTarget(), newCache(), newDoctor(), newVersion(), newRank(), newNativeWorker())
	return root
}

// newHelp replaces cobra's command, which takes what it does not know for no argument.
func newHelp() *cobra.Command {
	return &cobra.Command{
		Use:     "help [COMMAND]",
		Short:   "Show the help of a command",
		Long:    "Show the help of a command, as quill COMMAND --help does.",
		Example: examples("quill help compile", "quill help"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) > 1 {
				return usagef("one command is wanted, there are %d arguments: %s", len(args), strings.Join(args, " "))
			}
			shown, rest, err := cmd.Root().Find(args)
			if err != nil {
				return err
			}
			if err := noCommand(cmd.Root(), rest); err != nil {
				return err
			}
			shown.InitDefaultHelpFlag() // which cobra adds when a command runs
			return shown.Help()
		},
	}
}

// flagError words what is wrong with a flag.
func flagError(cmd *cobra.Command, err error) error {
	if e, ok := errors.AsType[*pflag.NotExistError](err); ok {
		var names []string
		cmd.Flags().VisitAll(func(f *pflag.Flag) { names = append(names, "--"+f.Name) })
		if near := ir.DidYouMean("--"+e.GetSpecifiedName(), names); near != "" && e.GetSpecifiedShortnames() == "" {
			return usagef("%v; %s", err, near)
		}
		return usageError(err.Error())
	}
	e, ok := errors.AsType[*pflag.InvalidValueError](err)
	if !ok {
		return usageError(err.Error())
	}
	want := map[string]string{
		"int": "a whole number", "int64": "a whole number", "uint64": "a whole number from 0",
		"float64": "a number", "bool": "true or false",
	}[e.GetFlag().Value.Type()]
	if want == "" {
		return usageError(err.Error())
	}
	if errors.Is(err, strconv.ErrRange) {
		want += " that fits 64 bits"
	}
	return usagef("--%s %q: want %s", e.GetFlag().Name, e.GetValue(), want)
}

// noCommand refuses what is no sub-command.
func noCommand(cmd *cobra.Command, args []string) error {
	if len(args) == 0 {
		return nil
	}
	cmd.SuggestionsMinimumDistance = 2
	if s := cmd.SuggestionsFor(args[0]); len(s) > 0 {
		return usagef("unknown command %q; did you mean %s?", args[0], strings.Join(s, " or "))
	}
	return usagef("unknown command %q", args[0])
}

// oneArg wants exactly one argument, called as the usage line calls it.
func oneArg(name string) cobra.PositionalArgs {
	return func(_ *cobra.Command, args []string) error {
		switch len(args) {
		case 0:
			return usagef("%s is missing", name)
		case 1:
			return nil
		}
		return usagef("one %s is wanted, there are %d arguments: %s", name, len(args), strings.Join(args, " "))
	}
}

// noArgs wants no arguments.
func noArgs(_ *cobra.Command, args []string) error {
	if len(args) > 0 {
		return usagef("no arguments are wanted, there is %q", args[0])
	}
	return nil
}

// needFlag wants a flag that has no default.
func needFlag(cmd *cobra.Command, name, what string) error {
	if f := cmd.Flags().Lookup(name); !f.Changed || f.Value.String() == "" {
		return usagef("--%s is missing: %s", name, what)
	}
	return nil
}

// examples formats command lines for help texts.
func examples(lines ...string) string { return "  " + strings.Join(lines, "\n  ") }
