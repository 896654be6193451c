//! `legate-example`: the application of `docs/kubernetes.md`. It speaks plain HTTP and knows nothing of
//! the mesh. The same program is the frontend, the backend, and a client to ask them with, because its
//! image has no shell.
#![expect(
    clippy::print_stdout,
    reason = "a command line tool talks to a terminal"
)]

mod client;
mod server;

use std::time::Duration;

use clap::{Parser, Subcommand};

/// A frontend, a backend, and a client for both.
#[derive(Parser)]
#[command(name = "legate-example", version)]
struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Serve HTTP on a port until SIGTERM
    Serve(server::Options),
    /// Ask once, and print what came back or why nothing did
    Get {
        /// Such as http://backend/
        url: String,
    },
    /// Ask without pause, and print how many requests were answered with 200 and how many were not
    Load {
        /// Such as http://backend/
        url: String,
        /// How long
        #[arg(long, default_value_t = 10)]
        seconds: u64,
    },
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> anyhow::Result<()> {
    match Args::parse().command {
        Command::Serve(options) => server::run(options).await?,
        Command::Get { url } => println!("{}", client::describe(client::get(&url).await)),
        Command::Load { url, seconds } => {
            println!("{}", client::load(&url, Duration::from_secs(seconds)).await);
        }
    }
    Ok(())
}
