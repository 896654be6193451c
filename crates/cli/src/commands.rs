//! All commands and their implementations. Commands of Consul have its names, flags and output.

use std::ffi::OsStr;
use std::process::ExitCode;

use clap::{CommandFactory, Parser, Subcommand};

use crate::{
    acl, agent, catalog, completion, config, connect, debug, dev, exec, intention, keygen,
    kubernetes, kv, local_agent, lock, login, members, not_served, operator, peering, rtt,
    services, snapshot, tenants, tls, validate, version, watch,
};

/// Legate: a service mesh that speaks Consul's APIs.
#[derive(Parser)]
#[command(name = "legate", disable_version_flag = true)]
pub(crate) struct Args {
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Subcommand)]
pub(crate) enum Command {
    /// Run a server of the control plane, with the flags and files of `consul agent`
    Agent(Box<agent::Flags>),
    /// Run a whole mesh on this machine: a control plane and two services with sidecars
    Dev(dev::Options),
    /// Check the health of the mesh on a Kubernetes cluster; fails if it is unhealthy
    Check(kubernetes::check::Options),
    /// List the sidecars of a Kubernetes cluster or the proxies of a server, and show the state of one
    /// of them
    Proxy(kubernetes::proxy::Options),
    /// Manage tokens, policies, roles, auth methods and binding rules
    #[command(subcommand)]
    Acl(acl::Command),
    /// List datacenters, nodes and services
    #[command(subcommand)]
    Catalog(catalog::Command),
    /// Print a completion script for a shell
    Completion(completion::Options),
    /// Manage config entries, or preview a write
    #[command(subcommand)]
    Config(config::Command),
    /// Manage certificates and proxies of the mesh
    #[command(subcommand)]
    Connect(connect::Command),
    /// Collect debugging information from an agent in an archive
    Debug(debug::Options),
    /// Fire an event
    Event(local_agent::Event),
    /// Run a command on nodes whose agents permit it
    Exec(exec::Options),
    /// Remove a failed node
    ForceLeave(local_agent::ForceLeave),
    /// Print an agent's runtime counters
    Info(local_agent::Plain),
    /// Manage intentions: which services may call which
    #[command(subcommand)]
    Intention(intention::Command),
    /// Join an agent to others
    Join(local_agent::Join),
    /// Generate a random encryption key
    Keygen(keygen::Options),
    /// Not supported: gossip keys
    Keyring(not_served::Anything),
    /// Read and write the key-value store
    #[command(subcommand)]
    Kv(kv::Command),
    /// Stop an agent gracefully
    Leave(local_agent::Plain),
    /// Run a program while holding a lock
    Lock(lock::Options),
    /// Exchange a credential for a token
    Login(login::Login),
    /// Destroy a token created by login
    Logout(login::Logout),
    /// Control maintenance mode of a node or a service
    Maint(local_agent::Maint),
    /// Write man pages to a folder
    #[command(hide = true)]
    Man(completion::Man),
    /// Print the members of a cluster
    Members(members::Options),
    /// Stream an agent's log
    Monitor(local_agent::Monitor),
    /// Manage namespaces
    #[command(subcommand)]
    Namespace(tenants::Command),
    /// Operate servers: Raft, Autopilot and usage
    #[command(subcommand)]
    Operator(operator::Command),
    /// Manage admin partitions
    #[command(subcommand)]
    Partition(tenants::Command),
    /// Manage connections to other clusters
    #[command(subcommand)]
    Peering(peering::Command),
    /// Reload an agent's configuration
    Reload(local_agent::Plain),
    /// Not supported: resources of Consul's second API
    Resource(not_served::Anything),
    /// Estimate the round-trip time between two nodes
    Rtt(rtt::Options),
    /// Manage registrations of services
    #[command(subcommand)]
    Services(services::Command),
    /// Save, restore and inspect the state of servers
    #[command(subcommand)]
    Snapshot(snapshot::Command),
    /// Create certificates for servers and clients
    #[command(subcommand)]
    Tls(tls::Command),
    /// Not supported: use `check` and `proxy` instead
    Troubleshoot(not_served::Anything),
    /// Validate an agent's configuration files
    Validate(validate::Options),
    /// Print the version
    Version(version::Options),
    /// Watch for changes and run a program on each
    Watch(watch::Options),
}

/// Whether a command parses its flags as Go does. Commands that only Legate has do not.
pub(crate) fn is_consuls(command: &str) -> bool {
    !matches!(
        command,
        "dev" | "check" | "proxy" | "help" | "keyring" | "resource" | "troubleshoot"
    )
}

/// Runs a command. `program` is the name under which the program was started.
///
/// # Errors
///
/// If the command fails.
pub(crate) async fn run(command: Command, program: &OsStr) -> anyhow::Result<ExitCode> {
    let success = |()| ExitCode::SUCCESS;
    match command {
        Command::Agent(flags) => agent::run(*flags).await.map(success),
        Command::Dev(options) => dev::run(options).await.map(success),
        Command::Check(options) => Ok(match kubernetes::check::run(options).await? {
            true => ExitCode::SUCCESS,
            false => ExitCode::FAILURE,
        }),
        Command::Proxy(options) => kubernetes::proxy::run(options).await.map(success),
        Command::Acl(command) => acl::run(command).await,
        Command::Catalog(command) => catalog::run(command).await,
        Command::Completion(options) => completion::run(&options, Args::command(), program),
        Command::Config(command) => config::run(command).await,
        Command::Connect(command) => connect::run(command).await,
        Command::Debug(options) => debug::run(options).await,
        Command::Event(options) => local_agent::event(options).await,
        Command::Exec(options) => exec::run(options).await,
        Command::ForceLeave(options) => local_agent::force_leave(options).await,
        Command::Info(options) => local_agent::info(options).await,
        Command::Intention(command) => intention::run(command).await,
        Command::Join(options) => local_agent::join(options).await,
        Command::Keygen(options) => keygen::run(&options),
        Command::Keyring(_) => not_served::refuse(not_served::KEYRING),
        Command::Kv(command) => kv::run(command).await,
        Command::Leave(options) => local_agent::leave(options).await,
        Command::Lock(options) => lock::run(options).await,
        Command::Login(options) => login::login(options).await,
        Command::Logout(options) => login::logout(options).await,
        Command::Maint(options) => local_agent::maint(options).await,
        Command::Man(options) => completion::man(&options, Args::command()),
        Command::Members(options) => members::run(options).await,
        Command::Monitor(options) => local_agent::monitor(options).await,
        Command::Namespace(command) => tenants::run(&tenants::NAMESPACE, command).await,
        Command::Operator(command) => operator::run(command).await,
        Command::Partition(command) => tenants::run(&tenants::PARTITION, command).await,
        Command::Peering(command) => peering::run(command).await,
        Command::Reload(options) => local_agent::reload(options).await,
        Command::Resource(_) => not_served::refuse(not_served::RESOURCE),
        Command::Rtt(options) => rtt::run(options).await,
        Command::Services(command) => services::run(command).await,
        Command::Snapshot(command) => snapshot::run(command).await,
        Command::Tls(command) => tls::run(command),
        Command::Troubleshoot(_) => not_served::refuse(not_served::TROUBLESHOOT),
        Command::Validate(options) => validate::run(options).await,
        Command::Version(options) => version::run(&options, program),
        Command::Watch(options) => watch::run(options).await,
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn commands_and_flags_do_not_contradict_each_other() {
        Args::command().debug_assert();
    }

    /// Whether a flag can be turned off: a switch without a value is never `false`.
    fn can_be_false(command: &clap::Command) {
        for arg in command.get_arguments() {
            let is_switch = matches!(arg.get_action(), clap::ArgAction::SetTrue);
            let is_on = arg.get_default_values().iter().any(|value| value == "true");
            assert!(!is_switch || !is_on, "{} {arg}", command.get_name());
        }
        command.get_subcommands().for_each(can_be_false);
    }

    #[test]
    fn flags_on_by_default_can_be_turned_off() {
        can_be_false(&Args::command());
    }

    /// The help of flags that commands share must not replace that of a command.
    fn has_own_help(command: &clap::Command) {
        let about = command.get_about().map(ToString::to_string);
        let of_flags = about.is_none_or(|about| about.starts_with("The flags of "));
        assert!(!of_flags, "{}", command.get_name());
        command.get_subcommands().for_each(has_own_help);
    }

    #[test]
    fn commands_have_their_own_help() {
        has_own_help(&Args::command());
    }
}
