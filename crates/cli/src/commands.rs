//! All commands, and what each of them runs. Those of Consul have its names, flags and outputs.

use std::ffi::OsStr;
use std::process::ExitCode;

use clap::{CommandFactory, Parser, Subcommand};

use crate::{
    acl, agent, catalog, completion, config, connect, debug, dev, intention, keygen, kubernetes,
    kv, local_agent, lock, login, members, not_served, operator, peering, rtt, services, snapshot,
    tenants, tls, validate, version, watch,
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
    /// Run one server of the control plane as `consul agent` does: with its flags and its files
    Agent(Box<agent::Flags>),
    /// Run a whole mesh on this machine: a control plane, two services and a sidecar for each
    Dev(dev::Options),
    /// Check whether the mesh on a Kubernetes cluster is healthy; fails when it is not
    Check(kubernetes::check::Options),
    /// List the sidecars of a Kubernetes cluster or the proxies of a server, and show what one of them
    /// does and has
    Proxy(kubernetes::proxy::Options),
    /// Tokens, policies, roles, auth methods and binding rules
    #[command(subcommand)]
    Acl(Box<acl::Command>),
    /// Datacenters, nodes and services
    #[command(subcommand)]
    Catalog(catalog::Command),
    /// Print what makes a shell complete commands
    Completion(completion::Options),
    /// Read and write config entries, or look at what a write would change
    #[command(subcommand)]
    Config(config::Command),
    /// Certificates and proxies of the mesh
    #[command(subcommand)]
    Connect(connect::Command),
    /// Collect what there is to know about an agent into an archive
    Debug(debug::Options),
    /// Fire an event
    Event(local_agent::Event),
    /// Not served: run a command on other nodes
    Exec(not_served::Anything),
    /// Say that a node is gone
    ForceLeave(local_agent::ForceLeave),
    /// Print what an agent counts
    Info(local_agent::Plain),
    /// Who may call whom
    #[command(subcommand)]
    Intention(intention::Command),
    /// Have an agent join others
    Join(local_agent::Join),
    /// Make a random key
    Keygen(keygen::Options),
    /// Not served: keys of gossip
    Keyring(not_served::Anything),
    /// Keys and values
    #[command(subcommand)]
    Kv(kv::Command),
    /// End an agent
    Leave(local_agent::Plain),
    /// Run a program while a lock is held
    Lock(lock::Options),
    /// Get a token for the proof of an identity
    Login(login::Login),
    /// Destroy a token of a login
    Logout(login::Logout),
    /// Maintenance of a node or a service
    Maint(local_agent::Maint),
    /// Write pages for `man` into a folder
    #[command(hide = true)]
    Man(completion::Man),
    /// Print the members of a cluster
    Members(members::Options),
    /// Print an agent's log as it is written
    Monitor(local_agent::Monitor),
    /// Namespaces
    #[command(subcommand)]
    Namespace(tenants::Command),
    /// Servers: Raft, Autopilot and usage
    #[command(subcommand)]
    Operator(operator::Command),
    /// Admin partitions
    #[command(subcommand)]
    Partition(tenants::Command),
    /// Connections to other clusters
    #[command(subcommand)]
    Peering(peering::Command),
    /// Have an agent read its configuration again
    Reload(local_agent::Plain),
    /// Not served: resources of Consul's second API
    Resource(not_served::Anything),
    /// Estimate the round-trip time between two nodes
    Rtt(rtt::Options),
    /// Registrations of services
    #[command(subcommand)]
    Services(services::Command),
    /// Save, restore and look at the state of servers
    #[command(subcommand)]
    Snapshot(snapshot::Command),
    /// Make certificates for servers and clients
    #[command(subcommand)]
    Tls(tls::Command),
    /// Not served: ports and proxies are looked at with `check` and `proxy`
    Troubleshoot(not_served::Anything),
    /// Check files of an agent's configuration
    Validate(validate::Options),
    /// Print the version
    Version(version::Options),
    /// Wait for changes, and run a program at each
    Watch(watch::Options),
}

/// Whether a command reads its flags as Go does. Those that only Legate has do not.
pub(crate) fn is_consuls(command: &str) -> bool {
    !matches!(
        command,
        "dev" | "check" | "proxy" | "help" | "exec" | "keyring" | "resource" | "troubleshoot"
    )
}

/// Runs a command. `program` is the name under which it was started.
///
/// # Errors
///
/// When what was asked for could not be done.
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
        Command::Acl(command) => acl::run(*command).await,
        Command::Catalog(command) => catalog::run(command).await,
        Command::Completion(options) => completion::run(&options, Args::command(), program),
        Command::Config(command) => config::run(command).await,
        Command::Connect(command) => connect::run(command).await,
        Command::Debug(options) => debug::run(options).await,
        Command::Event(options) => local_agent::event(options).await,
        Command::Exec(_) => not_served::exec(),
        Command::ForceLeave(options) => local_agent::force_leave(options).await,
        Command::Info(options) => local_agent::info(options).await,
        Command::Intention(command) => intention::run(command).await,
        Command::Join(options) => local_agent::join(options).await,
        Command::Keygen(options) => keygen::run(&options),
        Command::Keyring(_) => not_served::keyring(),
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
        Command::Resource(_) => not_served::resource(),
        Command::Rtt(options) => rtt::run(options).await,
        Command::Services(command) => services::run(command).await,
        Command::Snapshot(command) => snapshot::run(command).await,
        Command::Tls(command) => tls::run(command),
        Command::Troubleshoot(_) => not_served::troubleshoot(),
        Command::Validate(options) => validate::run(options),
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

    /// Whether a switch can be turned off: one that is set by being there is never `false`.
    fn can_be_false(command: &clap::Command) {
        for arg in command.get_arguments() {
            let is_switch = matches!(arg.get_action(), clap::ArgAction::SetTrue);
            let is_on = arg.get_default_values().iter().any(|value| value == "true");
            assert!(!is_switch || !is_on, "{} {arg}", command.get_name());
        }
        command.get_subcommands().for_each(can_be_false);
    }

    #[test]
    fn what_is_on_by_default_can_be_turned_off() {
        can_be_false(&Args::command());
    }
}
