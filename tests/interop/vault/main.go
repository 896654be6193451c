// Command vault is HashiCorp's Vault for the tests: its released core, HTTP API and PKI engine, without the
// other engines and the user interface, which take long to compile. It accepts the arguments of Vault's
// development mode, so the tests can run with this program or with Vault:
//
//	vault server -dev -dev-root-token-id=root -dev-listen-address=127.0.0.1:8200 -dev-no-store-token
//
// All data is in memory, and anyone who can reach the address has access.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"maps"
	"net"
	"net/http"
	"os"
	"slices"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/vault/builtin/credential/approle"
	"github.com/hashicorp/vault/builtin/logical/pki"
	"github.com/hashicorp/vault/command/server"
	"github.com/hashicorp/vault/helper/namespace"
	api "github.com/hashicorp/vault/http"
	"github.com/hashicorp/vault/internalshared/configutil"
	"github.com/hashicorp/vault/sdk/helper/consts"
	"github.com/hashicorp/vault/sdk/logical"
	"github.com/hashicorp/vault/sdk/physical/inmem"
	"github.com/hashicorp/vault/vault"
	"github.com/hashicorp/vault/version"
)

var (
	secrets = map[string]logical.Factory{"pki": pki.Factory}
	logins  = map[string]logical.Factory{"approle": approle.Factory}
)

// registry lists the engines of the program.
type registry struct{}

func (registry) of(kind consts.PluginType) map[string]logical.Factory {
	switch kind {
	case consts.PluginTypeSecrets:
		return secrets
	case consts.PluginTypeCredential:
		return logins
	default:
		return nil
	}
}

func (r registry) Contains(name string, kind consts.PluginType) bool {
	_, known := r.of(kind)[name]
	return known
}

func (r registry) Get(name string, kind consts.PluginType) (func() (any, error), bool) {
	factory, known := r.of(kind)[name]
	return func() (any, error) { return factory, nil }, known
}

func (r registry) Keys(kind consts.PluginType) []string {
	return slices.Collect(maps.Keys(r.of(kind)))
}

func (r registry) DeprecationStatus(name string, kind consts.PluginType) (consts.DeprecationStatus, bool) {
	return consts.Supported, r.Contains(name, kind)
}

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintf(os.Stderr, "error: %v\n", err)
		os.Exit(1)
	}
}

func run(args []string) error {
	if len(args) == 1 && args[0] == "version" {
		fmt.Println(version.GetVersion().FullVersionNumber(false))
		return nil
	}
	if len(args) == 0 || args[0] != "server" {
		return errors.New("say vault server -dev … or vault version")
	}
	flags := flag.NewFlagSet("vault server", flag.ContinueOnError)
	dev := flags.Bool("dev", false, "keep everything in memory; there is no other way here")
	address := flags.String("dev-listen-address", "127.0.0.1:8200", "where to listen, on the loopback")
	token := flags.String("dev-root-token-id", "", "the token that may do everything")
	flags.Bool("dev-no-store-token", true, "leave the home directory alone, as is always done here")
	if err := flags.Parse(args[1:]); err != nil {
		return err
	}
	if !*dev || *token == "" || flags.NArg() > 0 {
		return errors.New("-dev and -dev-root-token-id are needed, and nothing else is known")
	}
	core, err := start(namespace.RootContext(context.Background()), *token)
	if err != nil {
		return err
	}
	listener, err := net.Listen("tcp", *address)
	if err != nil {
		return err
	}
	handler := api.Handler.Handler(&vault.HandlerProperties{
		Core:           core,
		ListenerConfig: &configutil.Listener{},
	})
	served := http.Server{Handler: handler, ReadHeaderTimeout: 10 * time.Second}
	return served.Serve(listener)
}

// start creates an unsealed core with the given root token.
func start(ctx context.Context, token string) (*vault.Core, error) {
	logger := hclog.New(&hclog.LoggerOptions{Level: hclog.Warn})
	storage, err := inmem.NewInmem(nil, logger)
	if err != nil {
		return nil, err
	}
	core, err := vault.NewCore(&vault.CoreConfig{
		RawConfig:          &server.Config{SharedConfig: &configutil.SharedConfig{}},
		Physical:           storage,
		StorageType:        "inmem",
		LogicalBackends:    secrets,
		CredentialBackends: logins,
		BuiltinRegistry:    registry{},
		Logger:             logger,
		// The process is short-lived, and locking memory may not be permitted.
		DisableMlock: true,
	})
	if err != nil {
		return nil, err
	}
	made, err := core.Initialize(ctx, &vault.InitParams{
		BarrierConfig: &vault.SealConfig{SecretShares: 1, SecretThreshold: 1},
	})
	if err != nil {
		return nil, err
	}
	if _, err := core.Unseal(made.SecretShares[0]); err != nil {
		return nil, err
	}
	answer, err := core.HandleRequest(ctx, &logical.Request{
		ID:          "root-token",
		Operation:   logical.UpdateOperation,
		ClientToken: made.RootToken,
		Path:        "auth/token/create",
		Data: map[string]any{
			"id":                token,
			"policies":          []string{"root"},
			"no_parent":         true,
			"no_default_policy": true,
		},
	})
	if err != nil {
		return nil, err
	}
	if answer == nil || answer.Auth == nil {
		return nil, errors.New("there is no root token")
	}
	return core, nil
}
