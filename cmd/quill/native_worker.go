package main

import (
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"quill/lower/native"
	"quill/recipes"
	"quill/recipes/target"
)

// nativeExt ends the names of native recipes.
const nativeExt = ".native"

// newNativeWorker is what quill compile --native starts, and what compiles a recipe that
// failed there alone.
func newNativeWorker() *cobra.Command {
	var synapse, profile, out string
	cmd := &cobra.Command{
		Use:   native.WorkerCommand + " [RECIPE]",
		Short: "Compile one recipe with the vendor's compiler",
		Long: `Compile one recipe with the vendor's compiler, in this process. RECIPE is a file of a
recipe, as quill compile --native leaves it in a folder for each recipe that it could
not compile. The variables that the vendor's compiler obeyed then are in report.txt there.

Without RECIPE this is a process of quill compile --native, which talks to it.`,
		Example: examples("quill native-worker chat.failed/seg4-3fa2b1c09d77/recipe --profile chat.failed/seg4-3fa2b1c09d77/profile.json"),
		Hidden:  true,
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) > 1 {
				return usagef("one RECIPE is wanted, there are %d arguments", len(args))
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) == 0 {
				return native.Serve(&native.Vendor{})
			}
			if out == "" {
				out = args[0] + nativeExt
			}
			return compileOne(cmd.OutOrStdout(), args[0], synapse, profile, out)
		},
	}
	cmd.Flags().StringVar(&synapse, "synapse", "", synapseUsage)
	cmd.Flags().StringVar(&profile, "profile", target.Default, "target profile, a name or a file")
	cmd.Flags().StringVarP(&out, "output", "o", "", "file to write (default: the recipe's with "+nativeExt+")")
	return cmd
}

// maxRecipe bounds the bytes of a recipe's file.
const maxRecipe = 64 << 20

func compileOne(stdout io.Writer, file, synapse, profile, out string) error {
	if err := checkOutput("-o", out, file, profile); err != nil {
		return err
	}
	data, err := recipes.ReadSmall(file, maxRecipe)
	if err != nil {
		return err
	}
	r, err := recipes.DecodeRecipe(data, recipes.Sum(data))
	if err != nil {
		return fmt.Errorf("%s %w", file, err)
	}
	p, err := loadProfile(profile)
	if err != nil {
		return fmt.Errorf("--profile: %w", err)
	}
	var v native.Vendor
	driver, _, err := v.Load(synapse)
	if err != nil {
		return err
	}
	workspace, programs, err := v.Compile(r, p, out)
	if err != nil {
		return err
	}
	_, err = fmt.Fprintf(stdout, "%s: recipe %s by driver %s, workspace %s, programs %s\n", out, r.Name, driver, size(workspace), size(programs))
	return err
}
